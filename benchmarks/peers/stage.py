"""One run of LoomRL's training stage as the pipeline runs it, in a project of its own.

    .venv/bin/python benchmarks/peers/stage.py '{"algorithm": "ppo", ...}'

Takes a run as `loom.py` does. `process_seconds` are those of the training stage's whole process, `loop_seconds` those
it spent until its loop was made, and in collecting, updating and validating; `snapshot_seconds` are those of the
environment stage before it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from loom import training_config, versions

POLICY = "bench"
TIMED_STAGE = str(Path(__file__).with_name("timed_stage.py"))


def main() -> None:
    run = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        project = make_project(run, Path(temporary))
        snapshot_seconds = stage(project, "environment")
        process_seconds = stage(project, "training")
        loop_seconds = json.loads((project / "seconds.json").read_text())
        report = json.loads((project / "artifacts" / POLICY / "training" / "training.json").read_text())
    print(
        json.dumps(
            {
                "env_steps": report["total_env_steps"],
                "learn_seconds": None,
                "process_seconds": process_seconds,
                "loop_seconds": loop_seconds,
                "snapshot_seconds": snapshot_seconds,
                "greedy": [],
                "training": [],
                "marks": [],
                "versions": versions(),
            }
        )
    )


def make_project(run: dict[str, Any], folder: Path) -> Path:
    """A project with one policy."""
    training = training_config(run).model_dump(mode="json")
    sections = {"environment": {"id": run["environment"]}, "evaluation": {}, "safety": {}, "export": {}}
    config = {"name": POLICY, "training": training, **sections}
    (folder / "configs").mkdir()
    (folder / "configs" / f"{POLICY}.yaml").write_text(yaml.safe_dump(config))
    (folder / "dvc.yaml").write_text("stages: {}\n")
    return folder


def stage(project: Path, name: str) -> float:
    """Seconds of a stage's process, its events followed."""
    environment = {**os.environ, "LOOMRL_HOME": str(project / "home"), "LOOMRL_EVENTS": str(project / f"{name}.jsonl")}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, TIMED_STAGE, name, POLICY, str(time.time())], cwd=project, env=environment, check=True
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

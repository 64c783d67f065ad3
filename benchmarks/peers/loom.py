"""One run of LoomRL, with the training loop of the life cycle but without its files: no checkpoints, no events.

    .venv/bin/python benchmarks/peers/loom.py '{"algorithm": "ppo", ...}'

Takes and prints what `sb3.py` does, and counts the same seconds: making the environments and the algorithm, and what is
compiled, count; imports and the greedy episodes in between do not.
"""

import json
import subprocess
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import loomrl
from loomrl.algorithms.registry import get_algorithm, validate
from loomrl.environment.make import make_envs
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.system.threads import one_thread
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.seeds import Purpose, derive
from loomrl.training.validation import Validation

MARKS = 200  # points of the clock kept, at most
PACKAGES = ("torch", "numpy", "numba", "gymnasium", "mujoco", "envpool")


class Watch:
    """The run's clock, its training returns and its greedy episodes."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run
        self.started, self.paused = time.perf_counter(), 0.0
        self.marks: list[tuple[int, float]] = [(0, 0.0)]  # (env steps, seconds of learning)
        self.training: list[tuple[int, float]] = []  # (env step, mean return of the episodes that ended since the last)
        self.greedy: list[tuple[int, float, float]] = []  # (env steps, mean return, seconds of learning)
        self.first_update_seconds: float | None = None
        self._updated = self.started

    @property
    def clock(self) -> float:
        return time.perf_counter() - self.started - self.paused

    def update(self, row: dict[str, Any]) -> None:
        if self.first_update_seconds is None:
            self.first_update_seconds = time.time() - self.run["started_at"]
        if row["step"] - self.marks[-1][0] >= self.run["total_env_steps"] / MARKS:
            self.marks.append((row["step"], self.clock))
        if self.run["greedy_every"] and "episode_return" in row:
            self.training.append((row["step"], row["episode_return"]))
        self._updated = time.perf_counter()

    def validation(self, row: dict[str, Any]) -> None:
        """The validation began right after the update: the clock stood still in between."""
        self.greedy.append((row["step"], row["mean_return"], self._updated - self.started - self.paused))
        self.paused += time.perf_counter() - self._updated


def training_config(run: dict[str, Any]) -> TrainingConfig:
    """What the life cycle would train with."""
    validation = ValidationConfig(
        interval_env_steps=run["greedy_every"] or run["total_env_steps"],
        num_episodes=run["greedy_episodes"],
        first_seed=run["greedy_first_seed"],
        stop_at_return=run["stop_at_return"],
    )
    return TrainingConfig(
        algorithm=run["algorithm"],
        seed=run["seed"],
        total_env_steps=run["total_env_steps"],
        validation=validation,
        parameters=run["settings"],
    )


def make_loop(config: TrainingConfig, folder: Path, watch: Watch, validated: bool) -> tuple[TrainingLoop, str]:
    """The loop of `train_policy` in one segment, and the engine that learns."""
    plugin, parameters, spec = get_algorithm(config.algorithm), validate(config), load_snapshot(folder).spec
    spaces = space_from_json(spec.observation), space_from_json(spec.action)
    seed = derive(config.seed, Purpose.WEIGHTS)

    def environments(num_envs: int, autoreset: Any) -> Any:
        return make_envs(folder, num_envs, autoreset)

    loop = TrainingLoop(
        plugin.build(parameters, *spaces, seed=seed, total_env_steps=config.total_env_steps),
        environments,
        seed=config.seed,
        total_env_steps=config.total_env_steps,
        segment_env_steps=None,
        validation=Validation(config.validation, environments) if validated else None,
        on_update=watch.update,
        on_validation=watch.validation,
    )
    return loop, plugin.choose_engine(parameters, *spaces)


def measure(run: dict[str, Any]) -> dict[str, Any]:
    """Train once; returns what came of it."""
    if run["stop_at_return"] is not None:  # tenths of a second decide: all code is loaded before the clock starts
        measure({**run, "total_env_steps": 1, "stop_at_return": None})
    watch = Watch(run)
    loop, engine = make_loop(training_config(run), Path(run["snapshot"]), watch, bool(run["greedy_every"]))
    with one_thread(engine):
        for _ in loop.run():
            pass
    watch.marks.append((loop.env_steps, watch.clock))
    return {
        "env_steps": loop.env_steps,
        "learn_seconds": watch.clock,
        "process_seconds": time.time() - run["started_at"],
        "first_update_seconds": watch.first_update_seconds,
        "marks": watch.marks,
        "training": watch.training,
        "greedy": watch.greedy,
        "engine": engine,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of LoomRL and of what its speed depends on."""
    return {"loomrl": _loomrl(), **{name: version(name) for name in PACKAGES if find_spec(name)}}


def _loomrl() -> str:
    """LoomRL's version and commit; a `+` where its sources differ from it."""
    git = ["git", "-C", str(Path(loomrl.__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=False).stdout
    return version("loomrl") + (f" at {commit.strip()}{'+' if changed else ''}" if commit else "")


def main() -> None:
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()

"""Take every shipped policy through its whole life cycle in a fresh clone; keep what came of it as data.

python benchmarks/lifecycles.py [POLICY ...]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "lifecycles.json"


def main() -> None:
    """Run the policies named, or all, and write the results."""
    names = sys.argv[1:] or yaml.safe_load((ROOT / "params.yaml").read_text())["policies"]
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary) / "project"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(project)], check=True)
        rows = [life_cycle(project, name) for name in names]
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    others = [row for row in kept if row["policy"] not in names]
    RESULTS.write_text(json.dumps(sorted(others + rows, key=lambda row: row["policy"]), indent=1) + "\n")


def life_cycle(project: Path, name: str) -> dict[str, Any]:
    """One policy's run: outcome, seconds per stage, returns."""
    own = {"PYTHONPATH": f"{project / 'src'}:{project}", "LOOMRL_HOME": str(project / ".loomrl")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["loomrl", "run", f"configs/{name}.yaml"]
    done = subprocess.run(command, cwd=project, env={**os.environ, **own, "PATH": path}, check=False)
    newest = max((project / ".loomrl" / "runs").glob("*/record.json"))
    record = json.loads(newest.read_text())
    evaluation = json.loads((newest.parent / "artifacts" / name / "evaluation" / "evaluation.json").read_text())
    return {
        "policy": name,
        "exit_code": done.returncode,
        "state": record["state"],
        "commit": record["git_commit"],
        "mean_return": evaluation["mean_return"],
        "interquartile_mean_return": evaluation["interquartile_mean_return"],
        "stages": {
            stage["name"]: {"seconds": round(stage["seconds"], 1), "verdict": stage["verdict"]}
            for stage in record["stages"]
        },
    }


if __name__ == "__main__":
    main()

"""The examples of distributed training run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Ray gives its own processes 30 s to start, which cannot be set; on a busy machine that may be too short.
RAY_WAS_TOO_SLOW = "timed out during startup"
ATTEMPTS = 5
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "distributed"


def run(script: str, home: Path) -> list[str]:
    settings = {**os.environ, "LOOMRL_HOME": str(home)}
    command = [sys.executable, str(EXAMPLES / script)]
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, cwd=home, env=settings, capture_output=True, text=True, check=False)
        if RAY_WAS_TOO_SLOW not in done.stderr:
            break
        print(f"Ray was too slow to start: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_the_trainer_and_its_evaluator(tmp_path: Path) -> None:
    *iterations, last = run("trainer.py", tmp_path)
    assert [line.partition(":")[0] for line in iterations] == ["iteration 1", "iteration 2", "iteration 3"]
    assert last.endswith("by policy version 3")


@pytest.mark.long
def test_the_actors_by_hand(tmp_path: Path) -> None:
    *iterations, last = run("actors.py", tmp_path)
    assert len(iterations) == 5
    assert last == "policy version 5"


@pytest.mark.long
def test_ppo_by_two_learners(tmp_path: Path) -> None:
    (line,) = run("ppo_trainer.py", tmp_path)
    assert line.startswith("episodes earn ")

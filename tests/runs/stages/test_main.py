"""The stage runner: inputs verified, errors told to whoever listens, no stage outlives the process that started it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loomrl.system.files import sums
from tests.support.projects import copy_project, environment, run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("stages") / "project")


def test_unknown_stages_and_missing_inputs_are_named(project: Path) -> None:
    output = run(project, "python", "-m", "loomrl.runs.stages", "traning", "cartpole", expect=2)
    assert "unknown stage 'traning'; stages: code, environment, training, evaluation, safety, export" in output
    output = run(project, "python", "-m", "loomrl.runs.stages", "training", "cartpole", expect=3)
    assert "artifacts/cartpole/environment/SHA256SUMS is missing; run the stage that writes environment" in output


def test_a_failure_is_told_as_an_event(project: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    run(project, "python", "-m", "loomrl.runs.stages", "training", "cartpole", expect=3, LOOMRL_EVENTS=str(events))
    started, failed = (json.loads(line) for line in events.read_text().splitlines())
    assert started["event"] == "started"
    assert (failed["event"], failed["exit_code"]) == ("failed", 3)
    assert "SHA256SUMS is missing" in failed["message"]


ENVIRONMENT = """
import sys
import gymnasium
import numpy as np

class Inverse(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (256,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, leave=False):
        if leave:
            sys.exit(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.inverse(), {}

    def step(self, action):
        return self.inverse(), 0.0, False, False, {}

    def inverse(self):
        return np.linalg.inv(self.np_random.standard_normal((256, 256))).sum(0)
"""


def add_policy(project: Path, name: str, kwargs: str = "{}") -> None:
    """A policy for an environment whose observations BLAS computes."""
    (project / "inverse_environment.py").write_text(ENVIRONMENT)
    text = (project / "configs" / "cartpole.yaml").read_text().replace("name: cartpole", f"name: {name}")
    text = text.replace("backend: batched", "backend: auto")
    mine = f"id: Inverse-v0\n  entry_point: inverse_environment:Inverse\n  path: .\n  kwargs: {kwargs}"
    mine += "\n  fingerprint_episodes: 1\n  fingerprint_steps: 5"
    (project / "configs" / f"{name}.yaml").write_text(text.replace("id: CartPole-v1", mine))


@pytest.mark.parametrize("fault", ["a file in the way", "the environment exits"])
def test_an_unforeseen_error_never_looks_like_a_refusal(project: Path, tmp_path: Path, fault: str) -> None:
    events = tmp_path / "events.jsonl"
    add_policy(project, "leaving", "{leave: true}")
    (project / "artifacts").mkdir(exist_ok=True)
    (project / "artifacts" / "cartpole").write_text("")
    policy, error = (
        ("cartpole", "NotADirectoryError: ") if fault == "a file in the way" else ("leaving", "SystemExit: 1")
    )
    command = ("python", "-m", "loomrl.runs.stages", "environment", policy)
    output = run(project, *command, expect=3, LOOMRL_EVENTS=str(events))
    (project / "artifacts" / "cartpole").unlink()
    failed = json.loads(events.read_text().splitlines()[-1])
    assert (failed["event"], failed["exit_code"]) == ("failed", 3)
    assert failed["message"].startswith(error)
    assert "Traceback" in output  # nothing is hidden


def test_events_that_cannot_be_written_are_no_refusal(project: Path, tmp_path: Path) -> None:
    command = ("python", "-m", "loomrl.runs.stages", "environment", "cartpole")
    output = run(project, *command, expect=3, LOOMRL_EVENTS=str(tmp_path / "nowhere" / "events"))
    assert "FileNotFoundError" in output


def test_bytes_do_not_depend_on_the_number_of_threads(project: Path) -> None:
    add_policy(project, "numeric")

    def digests(num_threads: int) -> dict[str, str]:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        asked = dict.fromkeys(names, str(num_threads))
        run(project, "python", "-m", "loomrl.runs.stages", "environment", "numeric", **asked)
        return sums(project / "artifacts" / "numeric" / "environment")

    assert digests(1) == digests(2)


def test_a_stage_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    child = "import time; from loomrl.runs.stages.__main__ import die_with_parent; die_with_parent(0.05); "
    child += "print('up', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
    parent += "print(p.pid, flush=True); p.wait()"
    started = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    assert started.stdout.readline() == "up\n"
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.05)

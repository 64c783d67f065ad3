"""The stage runner: inputs verified, errors told to whoever listens, no stage outlives the process that started it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from projects import copy_project, environment, run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("stages") / "project")


def test_unknown_stages_and_missing_inputs_are_named(project: Path) -> None:
    output = run(project, "python", "-m", "loomrl.stages", "traning", "cartpole", expect=2)
    assert "unknown stage 'traning'; stages: environment, training, evaluation, safety, export" in output
    output = run(project, "python", "-m", "loomrl.stages", "training", "cartpole", expect=3)
    assert "artifacts/cartpole/environment/SHA256SUMS is missing; run the stage that writes environment" in output


def test_a_failure_is_told_as_an_event(project: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    run(project, "python", "-m", "loomrl.stages", "training", "cartpole", expect=3, LOOMRL_EVENTS=str(events))
    started, failed = (json.loads(line) for line in events.read_text().splitlines())
    assert started["event"] == "started"
    assert (failed["event"], failed["exit_code"]) == ("failed", 3)
    assert "SHA256SUMS is missing" in failed["message"]


def test_a_stage_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    child = "import time; from loomrl.stages.__main__ import die_with_parent; die_with_parent(0.05); "
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

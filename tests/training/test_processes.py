"""What is recorded is the learner's device, processor and code, whoever began the training."""

from pathlib import Path
from typing import Any

import pytest

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.peers import ALONE
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.system.files import canonical_json, sha256
from loomrl.system.threads import processor_family
from loomrl.training import processes
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import TrainingConfig
from loomrl.training.distributed import run
from loomrl.training.distributed.learners.learner import DistributedLearner, create_task
from loomrl.training.job import TrainingJob
from loomrl.training.processes import common, union
from loomrl.training.train import train_policy
from loomrl.types import ComputingProcess


def process(name: str, processor: str, device: str = "cpu") -> ComputingProcess:
    return ComputingProcess(
        name=name, engine="torch", device=device, num_threads=1, processor=processor, software="0" * 64
    )


def test_facts_that_differ_are_listed_with_who_has_them() -> None:
    found = [process("learner 0", "x86_64 znver4"), process("learner 1", "x86_64 skylake", "NVIDIA H200")]
    found.append(process("learner 2", "x86_64 znver4"))
    assert common(found, "processor") == "x86_64 znver4 (learner 0), x86_64 skylake (learner 1)"
    assert common(found, "device") == "cpu (learner 0), NVIDIA H200 (learner 1)"
    assert common(found, "engine") == "torch"


def test_a_process_is_named_once_however_often_it_came() -> None:
    one, other = process("learner 0", "a").to_json(), process("learner 0", "b").to_json()
    assert union([one], [other, one], [other]) == [one, other]


def test_the_report_names_the_processes_that_learnt_and_not_the_one_that_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner runs on what says it is another device, processor and code, and after a loss on yet others."""
    left: list[Checkpoint] = []

    def call(method: str, *arguments: Any) -> Any:
        if method == "submit_checkpoint":
            left.append(arguments[2])
        return left[1] if method == "register_learner" and left else None

    def learn_elsewhere(job: TrainingJob, rollout_length: int, *rest: Any, **hooks: Any) -> Checkpoint:
        for host in ("first", "second"):
            with monkeypatch.context() as there:
                there.setattr(processes, "processor_family", lambda here=host: f"x86_64 {here}")
                there.setattr(Algorithm, "device", property(lambda _, here=host: f"{here} device"))
                there.setattr(processes, "software", lambda *_, here=host: {"code": here})
                DistributedLearner(create_task(job, rollout_length, None), 0, 1, call).run(
                    lambda config, watchdog: ALONE
                )
        return left[-1]

    monkeypatch.setattr(run, "learn_on_ray", learn_elsewhere)
    take_snapshot(EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1), tmp_path, tmp_path / "snapshot")
    config = TrainingConfig.model_validate(
        {
            "total_env_steps": 1024,
            "checkpoint_interval_env_steps": 256,
            "checkpoint_interval_seconds": 0,
            "validation": {"interval_env_steps": 512, "num_episodes": 1},
            "parameters": {"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 1, "hidden_sizes": [8]},
            "distributed": {"num_learners": 1},
        }
    )
    report = train_policy(config, tmp_path / "snapshot", tmp_path / "output", tmp_path / "home")
    assert report.processor == "x86_64 first (learner 0), x86_64 second (learner 0)"
    assert processor_family() not in report.processor
    assert report.device == "first device (learner 0), second device (learner 0)"
    assert [(one.name, one.engine, one.device, one.num_threads) for one in report.processes] == [
        ("learner 0", "compiled", "first device", 1),
        ("learner 0", "compiled", "second device", 1),
    ]
    assert [one.software for one in report.processes] == [
        sha256(canonical_json({"code": host})) for host in ("first", "second")
    ]

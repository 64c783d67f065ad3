"""The training stage with learners on Ray: the same outputs, whatever is lost on the way, and clear ends."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from loomrl.algorithms.peers import ALONE
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.system.files import read_json
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.distributed import session
from loomrl.training.distributed.learners.coordinator import Coordinator
from loomrl.training.distributed.learners.joint_checkpoints import divided, joined, part_of
from loomrl.training.distributed.learners.learner import DistributedLearner, create_task
from loomrl.training.distributed.learners.learner_jobs import check_shares
from loomrl.training.job import TrainingJob
from loomrl.training.train import train_policy
from loomrl.training.trainer import PPOConfig, PPOTrainer
from tests.support import learners
from tests.support.learners import World
from tests.support.walks import given, settings, walk

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray warns of its own

LOCAL_STEPS = {
    "num_learners": 2,
    "sync_frequency": 5,
    "outer_learning_rate": 0.7,
    "outer_momentum": 0.9,
    "compression": {"method": "int8"},
    "hang_timeout_seconds": 20.0,
    "max_restarts": 5,
}


def learnt(folder: Path) -> tuple[bytes, Any]:
    """The policy that a stage wrote, and its learning curves."""
    return (folder / "policy.safetensors").read_bytes(), read_json(folder / "curves.json")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot in which nothing happens."""
    return walk(tmp_path_factory.mktemp("walks") / "quiet")


@pytest.fixture(scope="module")
def members() -> Iterator[World]:
    """Learners without Ray."""
    with World(2) as found:
        yield found


def test_one_learner_learns_what_the_stage_learns_by_itself(quiet: Path, tmp_path: Path) -> None:
    train_policy(settings(), quiet, tmp_path / "out", tmp_path / "home")
    coordinator = Coordinator(None)

    def call(method: str, *arguments: Any) -> Any:
        return getattr(coordinator, method)(*arguments)

    DistributedLearner(given(quiet, {"num_learners": 1}), 0, 1, call).run(lambda config, watchdog: ALONE)
    (left,) = coordinator.take_updates().checkpoints
    _, curves = learnt(tmp_path / "out")
    assert left.values["rows"]["rows"] == curves["updates"]
    assert left.values["validation"]["rows"] == curves["validations"]
    for name, array in load_file(tmp_path / "out" / "policy.safetensors").items():
        np.testing.assert_array_equal(left.arrays[f"best.{name}"], array)


def test_learners_go_on_with_the_state_they_left(members: World, quiet: Path) -> None:
    work = given(quiet, LOCAL_STEPS)
    left = members.run(learners.trained, work, size=2)
    parts = [checkpoints[2] for checkpoints in left]
    resumed = [part_of(joined(parts), rank) for rank in range(2)]
    told = members.run(learners.resumed, work, resumed, size=2)
    assert told == [{"learner": rank, "step": 1536, "digest": part.digest} for rank, part in enumerate(resumed)]
    for one, part in zip(resumed, parts, strict=True):
        assert one.values.pop("processes") == [found for own in parts for found in own.values["processes"]]
        assert one.values == {name: value for name, value in part.values.items() if name != "processes"}
        assert all(np.array_equal(array, part.arrays[name], equal_nan=True) for name, array in one.arrays.items())
    assert parts[0].digest != parts[1].digest


@pytest.mark.parametrize("sync_frequency", [1, 5])
def test_learners_end_together_once_so_many_episodes_have_ended(
    members: World, quiet: Path, sync_frequency: int
) -> None:
    """In the fifth update, amid a segment and amid steps of their own; also those who went on from the fourth. An
    update is 32 steps in 8 environments, an episode 20 steps."""
    work = given(quiet, {"num_learners": 2, "sync_frequency": sync_frequency})
    work = replace(work, job=replace(work.job, total_episodes=49))
    left = members.run(learners.trained, work, size=2)
    for own in left:
        assert [part.step for part in own] == [512, 1024, 1280]
        assert [part.values["stop_reason"] for part in own] == [None, None, "total_episodes"]
        assert own[-1].values["num_episodes"] == 64
        assert [row["num_episodes"] for row in own[-1].values["rows"]["rows"]] == [8, 24, 32, 48, 64]
        assert [row["step"] for row in own[-1].values["validation"]["rows"]] == [1024, 1280]
    one, other = (own[-1] for own in left)
    policy = [name for name in one.arrays if name.startswith("algorithm.policy.")]
    assert policy
    for name in policy:
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name], err_msg=name)
    whole = joined([one, other])
    resumed = members.run(learners.trained, work, joined([own[1] for own in left]), size=2)
    again = joined([own[-1] for own in resumed])
    assert again.values == whole.values
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_lost_learner_costs_nothing_of_what_is_learnt(
    members: World, quiet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One hangs in the second segment and is ended; all go on from the first one's checkpoint, to the same numbers as
    learners that nothing happens to, which are no Ray's."""
    left = members.run(learners.trained, given(quiet, LOCAL_STEPS), size=2)
    wild = walk(tmp_path / "wild", hang=300)
    with caplog.at_level(logging.WARNING):
        train_policy(settings(distributed=LOCAL_STEPS), wild, tmp_path / "out", tmp_path / "home")
    assert (wild.parent / "hang").exists()
    assert "no sign of life for 20 s" in caplog.text
    assert "in _fail" in caplog.text  # where it hung
    _, curves = learnt(tmp_path / "out")
    last = left[0][-1]
    assert curves == {"updates": last.values["rows"]["rows"], "validations": last.values["validation"]["rows"]}
    assert [row["step"] for row in curves["updates"]] == [256 * update for update in range(1, 13)]
    assert [row["step"] for row in curves["validations"]] == [1024, 2048, 3072]
    for name, array in load_file(tmp_path / "out" / "policy.safetensors").items():
        np.testing.assert_array_equal(last.arrays[f"best.{name}"], array)
    for name in last.arrays:
        if name.startswith("algorithm.policy."):
            np.testing.assert_array_equal(left[1][-1].arrays[name], last.arrays[name])  # parameters are one at the end


@pytest.mark.parametrize(("algorithm", "sync_frequency"), [("dqn", 1), ("dqn", 16), ("sac", 16)])
@pytest.mark.long_cases("dqn-16")
def test_learners_with_replays_of_their_own_learn_and_go_on_from_any_checkpoint(
    members: World, quiet: Path, algorithm: str, sync_frequency: int
) -> None:
    """A policy that does not learn ends a walk with -20 or less, the best one at -5."""
    values = {"num_envs": 8, "rollout_length": 8, "learning_starts": 256, "hidden_sizes": [16], "gradient_steps": 16}
    parameters = values | {"batch_size": 64, "replay_capacity": 2000}
    distributed = {"num_learners": 2, "sync_frequency": sync_frequency}
    assignment = given(quiet, distributed, 8, algorithm=algorithm, parameters=parameters)
    left = members.run(learners.trained, assignment, size=2)
    third, last = (joined([own[segment] for own in left]) for segment in (2, -1))
    assert last.values["validation"]["rows"][-1]["mean_return"] > -10.0
    assert last.values["rows"]["rows"][-1]["replay_size"] == 2000
    resumed = members.run(learners.trained, assignment, third, size=2)
    again = joined([own[-1] for own in resumed])
    assert again.values == last.values
    for name, array in last.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)
    seen = [last.arrays[f"{own}algorithm.replay.reward"] for own in ("", "learner1.")]
    assert not np.array_equal(*seen)


@pytest.mark.parametrize(
    ("algorithm", "distributed"),
    [("dqn", {}), ("ppo", {"sync_frequency": 3, "outer_momentum": 0.5, "compression": {"method": "int8"}})],
)
def test_fewer_learners_go_on_and_then_more_again(
    members: World, quiet: Path, algorithm: str, distributed: dict[str, Any]
) -> None:
    """Two learners for two segments, one for two, then two to the end: nothing of what they have in common is lost."""
    values = {"num_envs": 7, "rollout_length": 8, "batch_size": 49, "hidden_sizes": [16]}  # no multiples of 2
    if algorithm == "dqn":
        values |= {"replay_capacity": 700, "learning_starts": 0}
    elastic = {"num_learners": 2, "min_learners": 1, **distributed}
    assignment = given(quiet, elastic, 8, algorithm=algorithm, parameters=values)
    left = members.run(learners.trained, assignment, size=2)
    second = joined([own[1] for own in left])
    alone = members.run(learners.trained, assignment, second, size=1)
    fourth = alone[0][1]
    last = members.run(learners.trained, assignment, fourth, size=2)[0][-1]
    steps = [row["step"] for row in last.values["rows"]["rows"]]
    assert steps[0] == 64
    assert set(np.diff(steps)) == {64, 56}  # rounded up where 7 environments are two learners'
    assert steps[-1] >= 3072 > steps[-2]
    for name, array in divided(second, 1, 7).arrays.items():
        if name.startswith(("algorithm.policy.", "algorithm.learner.parameters")):
            np.testing.assert_array_equal(array, second.arrays[name])
    if algorithm == "dqn":
        assert second.arrays["algorithm.replay.reward"].shape == (4, 100)
        assert last.arrays["algorithm.replay.reward"].shape == (4, 100)
        assert fourth.arrays["algorithm.replay.reward"].shape == (7, 100)


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_call_of_ppo_trainer_is_shared() -> None:
    values = {"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": (8,)}
    trainer = PPOTrainer(PPOConfig(distributed=True, sync_frequency=3, **values))
    policy = trainer.policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    result = asyncio.run(trainer.train(total_timesteps=200))
    assert (result.total_env_steps, result.stop_reason, result.validations) == (256, "total_env_steps", [])
    assert [row["step"] for row in result.updates] == [128, 256]
    assert trainer.policy is policy
    for name, value in policy.state_dict().items():
        assert not torch.equal(value, before[name]), name


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_call_of_ppo_trainer_that_is_shared_ends_after_so_many_episodes() -> None:
    """With no limit in steps; schedules have no end to fall to, as in a call that is not shared."""
    values = {"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": (8,)}
    config = PPOConfig(distributed=True, total_episodes=20, learning_rate_schedule="linear", sync_frequency=3, **values)
    result = asyncio.run(PPOTrainer(config).train())
    assert (result.stop_reason, result.validations) == ("total_episodes", [])
    assert result.num_episodes == result.metrics["num_episodes"] >= 20 > result.updates[-2]["num_episodes"]
    assert {row["learning_rate"] for row in result.updates} == {config.learning_rate}


def test_a_call_of_ppo_trainer_tells_its_learners_how_many_episodes_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here without Ray, in this process."""

    def learn_here(job: TrainingJob, rollout_length: int, newest: Checkpoint, save: Any, *_: Any, **__: Any) -> None:
        coordinator = Coordinator(newest)

        def call(method: str, *arguments: Any) -> Any:
            return getattr(coordinator, method)(*arguments)

        DistributedLearner(create_task(job, rollout_length, None), 0, 1, call).run(lambda config, watchdog: ALONE)
        save(coordinator.take_updates().checkpoints[-1])

    monkeypatch.setattr(session, "learn_on_ray", learn_here)
    values = {"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 1, "hidden_sizes": (8,)}
    config = PPOConfig(distributed=True, num_learners=1, total_episodes=20, **values)
    result = asyncio.run(PPOTrainer(config).train(total_timesteps=3_200))
    assert result.stop_reason == "total_episodes"
    assert result.num_episodes >= 20 > result.updates[-2]["num_episodes"]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.long), 1])
def test_an_environment_that_breaks_its_api_ends_training_with_its_name(num_workers: int, tmp_path: Path) -> None:
    distributed = {"num_learners": 1, "rollout_workers_per_learner": num_workers, "max_restarts": 0}
    taken = walk(tmp_path / "walk", **{"raise": 600})
    with pytest.raises(EnvironmentFault, match="the valve is stuck"):
        train_policy(settings(distributed=distributed), taken, tmp_path / "out", tmp_path / "home")
    (saved,) = (tmp_path / "home" / "checkpoints").iterdir()
    assert len(list(saved.glob("step-*"))) >= 1


@pytest.mark.usefixtures("ray_cluster")
def test_learners_for_whom_the_cluster_has_no_room_are_refused(quiet: Path, tmp_path: Path) -> None:
    distributed = {"num_learners": 2, "resources_per_learner": {"CPU": 64.0}}
    with pytest.raises(ConfigError, match="need 128 CPU, the Ray cluster has"):
        train_policy(settings(distributed=distributed), quiet, tmp_path / "out", tmp_path / "home")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"distributed": {"num_learners": 3}}, "num_envs: 8 cannot be divided by .*num_learners 3; set it to 9"),
        ({"distributed": {}, "algorithm": "grpo", "parameters": {}}, "algorithm 'grpo' is learnt by one learner"),
        (
            {"distributed": {}, "algorithm": "dqn", "parameters": {"replay_storage": "disk"}},
            'replay_storage: learners .* set it to "memory"',
        ),
        (
            {"distributed": {}, "algorithm": "sac", "parameters": {"num_envs": 2, "batch_size": 2}},
            "divided by 2 learners.batch_size: Input should be greater than or equal to 2",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(quiet: Path, values: dict[str, Any], message: str) -> None:
    config = settings(**values)
    assert config.distributed is not None
    job = TrainingJob.of(config, quiet)
    with pytest.raises(ConfigError, match=message):
        check_shares(job, 32, config.distributed)

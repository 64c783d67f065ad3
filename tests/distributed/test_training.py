"""The training stage with learners on Ray: the same outputs, whatever is lost on the way, and clear ends."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learners
import numpy as np
import pytest
from learners import World
from safetensors.numpy import load_file
from walks import job_of, settings, walk

from loomrl.algorithms.peers import ALONE
from loomrl.distributed.cluster import cluster
from loomrl.distributed.config import DistributedConfig
from loomrl.distributed.desk import Desk, joined, part_of
from loomrl.distributed.learner import Learner, assigned
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.files import read_json
from loomrl.training.train import train_policy

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
def ray_cluster() -> Iterator[None]:
    """One cluster for all trainings here; begun and ended as the stage does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a process in each training, for clouds
        with cluster(DistributedConfig(num_learners=2)):
            yield


def test_one_learner_learns_what_the_stage_learns_by_itself(quiet: Path, tmp_path: Path) -> None:
    train_policy(settings(), quiet, tmp_path / "out", tmp_path / "home")
    desk = Desk(1, None)

    def ask(method: str, *arguments: Any) -> Any:
        return getattr(desk, method)(*arguments)

    Learner(assigned(*job_of(quiet, num_learners=1), desk), 0, ask).run(lambda config, watchdog: ALONE)
    (left,) = desk.take().checkpoints
    _, curves = learnt(tmp_path / "out")
    assert left.values["rows"]["rows"] == curves["updates"]
    assert left.values["validation"]["rows"] == curves["validations"]
    for name, array in load_file(tmp_path / "out" / "policy.safetensors").items():
        np.testing.assert_array_equal(left.arrays[f"best.{name}"], array)


def test_learners_go_on_with_the_state_they_left(quiet: Path) -> None:
    work = assigned(*job_of(quiet, **LOCAL_STEPS), None)
    with World(2) as members:
        left = members.run(learners.trained, work, size=2)
        parts = [checkpoints[2] for checkpoints in left]
        told = members.run(learners.resumed, work, [part_of(joined(parts), rank) for rank in range(2)], size=2)
    assert told == [{"learner": rank, "step": 1536, "digest": part.digest} for rank, part in enumerate(parts)]
    assert parts[0].digest != parts[1].digest


@pytest.mark.usefixtures("ray_cluster")
def test_a_lost_learner_costs_nothing_of_what_is_learnt(
    quiet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One hangs in the second segment and is ended; all go on from the first one's checkpoint, to the same numbers as
    learners that nothing happens to, which are no Ray's."""
    with World(2) as members:
        left = members.run(learners.trained, assigned(*job_of(quiet, **LOCAL_STEPS), None), size=2)
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


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_environment_that_breaks_its_api_ends_training_with_its_name(num_workers: int, tmp_path: Path) -> None:
    distributed = {"num_learners": 1, "rollout_workers_per_learner": num_workers, "max_restarts": 0}
    taken = walk(tmp_path / "walk", **{"raise": 600})
    with pytest.raises(EnvironmentFault, match="the valve is stuck"):
        train_policy(settings(distributed=distributed), taken, tmp_path / "out", tmp_path / "home")
    (saved,) = (tmp_path / "home" / "checkpoints").iterdir()
    assert len(list(saved.glob("step-*"))) >= 1


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"distributed": {"num_learners": 3}}, "num_envs: 8 cannot be divided by .*num_learners 3; set it to 9"),
        (
            {"distributed": {"num_learners": 2, "resources_per_learner": {"CPU": 64.0}}},
            "2 learners need 128 CPU, the Ray cluster has",
        ),
        ({"distributed": {}, "algorithm": "dqn", "parameters": {}}, "algorithm 'dqn' is learnt by one learner"),
    ],
)
def test_what_cannot_be_shared_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_policy(settings(**values), walk(tmp_path / "walk"), tmp_path / "out", tmp_path / "home")

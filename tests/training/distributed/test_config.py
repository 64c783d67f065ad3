"""What `training.distributed` accepts, and what it says of the rest."""

import socket
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.training.config import DistributedConfig, TrainingConfig
from loomrl.training.distributed.cluster import cluster
from loomrl.training.inputs import inputs_digest
from loomrl.types import EnvironmentSnapshot


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_learners": 0}, "greater than or equal to 1"),
        ({"sync_frequency": 0}, "greater than or equal to 1"),
        ({"num_learners": 2, "min_learners": 3}, "min_learners 3 is above num_learners 2"),
        ({"min_learners": 1, "rollout_workers_per_learner": 1}, "min_learners: Ray does not count rollout workers"),
        ({"outer_momentum": 0.9}, "outer_momentum: with `sync_frequency: 1`"),
        ({"outer_momentum": 1.0, "sync_frequency": 2}, "less than 1"),
        ({"compression": {"method": "zip"}}, "'fp16'"),
        ({"compression": {"method": "int8", "share": 0.1}}, "share belongs to `method: top_k`; found 'int8'"),
        ({"compression": {"rank": 2}}, "rank belongs to `method: powersgd`; found 'none'"),
        ({"resources_per_learner": {"GPU": 1.0}}, "set CPU above 0"),
        (
            {"resources_per_learner": {"CPU": 1.0, "GPU": -1.0}},
            "_learner.GPU\n.*greater than or equal to 0",
        ),
        ({"resources_per_worker": {"CPU": float("inf")}}, "resources_per_worker.CPU\n.*finite"),
        ({"compression": "int8"}, "found 'int8'; write it as `{method: int8}`"),
        ({"address": "ray://10.0.0.1:10001"}, "should match pattern"),
        ({"address": "10.0.0.1"}, "should match pattern"),
        (
            {"max_staleness": 1},
            "max_staleness: a learner that collects itself .* set rollout_workers_per_learner above 0",
        ),
        ({"max_staleness": 2, "rollout_workers_per_learner": 1}, "less than or equal to 1"),
        ({"learners": 2}, "Extra inputs"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DistributedConfig.model_validate(values)


@pytest.mark.parametrize("values", [{}, {"compression": {"method": "int8"}}, {"sync_frequency": 5}])
def test_what_is_written_out_in_full_can_be_read_again(values: dict[str, Any]) -> None:
    config = DistributedConfig.model_validate(values)
    assert DistributedConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("name", ["resources_per_learner", "resources_per_worker"])
def test_more_processors_for_one_than_this_machine_has_are_refused(name: str) -> None:
    config = DistributedConfig.model_validate({name: {"CPU": 1000.0}, "rollout_workers_per_learner": 1})
    with pytest.raises(ConfigError, match=f"training.distributed.{name}: CPU 1000, this machine has "), cluster(config):
        pass


def digest(distributed: dict[str, Any] | None) -> str:
    config = TrainingConfig.model_validate({"total_env_steps": 1, "distributed": distributed})
    return inputs_digest(config, EnvironmentSnapshot.model_construct(digest="0"))


def test_where_learners_run_does_not_matter_and_how_many_does() -> None:
    elsewhere = {
        "address": "10.0.0.1:6379",
        "hang_timeout_seconds": 9.0,
        "max_restarts": 0,
        "resize_interval_seconds": 1,
    }
    assert digest({}) == digest({**elsewhere, "resources_per_learner": {"CPU": 2.0}})
    workers = {"rollout_workers_per_learner": 2, "resources_per_worker": {"CPU": 0.5}}
    assert digest({}) == digest(workers)
    others = [
        None,
        workers | {"max_staleness": 1},
        {"num_learners": 4},
        {"min_learners": 1},
        {"sync_frequency": 5},
        {"compression": {"method": "fp16"}},
    ]
    assert len({digest({}), *map(digest, others)}) == 1 + len(others)


def test_a_cluster_has_room_for_learners_and_workers() -> None:
    values = {
        "num_learners": 2,
        "rollout_workers_per_learner": 3,
        "resources_per_learner": {"CPU": 1.0, "GPU": 1.0},
        "resources_per_worker": {"CPU": 0.5},
    }
    assert DistributedConfig.model_validate(values).resources(num_learners=2) == {"CPU": 5.0, "GPU": 2.0}


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        message = f"training.distributed.address: nobody answers at {address} .* `ray start --head`"
        with pytest.raises(ConfigError, match=message), cluster(DistributedConfig(address=address)):
            pass


def test_ray_is_imported_where_it_is_used() -> None:
    distributed = "loomrl.training.distributed.run, loomrl.training.distributed.trainer"
    everything = f"loomrl.cli.main, loomrl.training.train, {distributed}, sys"
    program = f"import {everything}; sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

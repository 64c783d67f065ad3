"""Whatever goes wrong on a cluster ends in time, with a message that names it, and checkpoints stay."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from unreliable_env import Mishaps

import loomrl.training.distributed.cluster
from loomrl.algorithms.peers import ALONE
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError, ServiceError
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed import run
from loomrl.training.distributed.cluster import ClusterHead, cluster
from loomrl.training.distributed.learners.coordinator import Coordinator
from loomrl.training.distributed.learners.hosts import different, same_software
from loomrl.training.distributed.learners.learner import DistributedLearner, learn
from loomrl.training.distributed.learners.process_group import interface_with
from loomrl.training.distributed.ray_train import Trainer
from loomrl.training.train import train_policy
from tests.support.walks import given, settings, walk

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray warns of its own

ONE_LEARNER = {"num_learners": 1, "max_restarts": 0}
_STORE_BYTES = 80_000_000  # Ray's least


# --- the address ---


@contextmanager
def web_server() -> Iterator[int]:
    """Its port."""
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of one that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("make", [web_server, silent_server])
def test_an_address_where_something_else_answers_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loomrl.training.distributed.cluster, "ANSWER_SECONDS", 1.0)
    with make() as port:
        message = f"what answers at 127.0.0.1:{port} is no head of a Ray cluster; begin the head there"
        config = DistributedConfig(address=f"127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=message), cluster(config):
            pass


@pytest.mark.long
def test_a_head_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loomrl.training.distributed.cluster, "_ASK_SECONDS", 0.0)
    with cluster(DistributedConfig(num_learners=1)) as ray:
        head = ClusterHead(ray)
        head.require_answer()
    head.require_answer()  # not yet
    monkeypatch.setattr(loomrl.training.distributed.cluster, "GONE_SECONDS", 0.0)
    with pytest.raises(ServiceError, match="has not answered for 0 s; saved checkpoints are intact"):
        head.require_answer()


def test_the_interface_is_the_one_with_the_hosts_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for address in (one.address for one in addresses if one.family == socket.AF_INET):
            assert interface_with(address) == name
    assert interface_with("192.0.2.1") is None  # an address for documentation, nobody's


# --- Ray Train ---


def test_of_ray_trains_own_actors_only_the_one_that_waits_for_itself_is_left_out() -> None:
    def kinds(trainer: Any) -> list[str]:
        callbacks = trainer(lambda: None, scaling_config=ScalingConfig(num_workers=1))._create_default_callbacks()
        return [type(one).__name__ for one in callbacks]

    theirs = kinds(TorchTrainer)
    assert theirs.count("PlacementGroupCleanerCallback") == 1
    theirs.remove("PlacementGroupCleanerCallback")
    assert kinds(Trainer) == theirs


@pytest.mark.parametrize("resources", [{}, {"GPU": 1.0}])
def test_learners_are_given_gpus_where_they_ask_for_them(tmp_path: Path, resources: dict[str, float]) -> None:
    distributed = {"num_learners": 2, "resources_per_learner": {"CPU": 1.0} | resources}
    trainer = run._trainer(given(walk(tmp_path / "walk"), distributed), tmp_path)
    assert trainer.backend_config.backend == "gloo"
    assert trainer.scaling_config.use_gpu == bool(resources)
    assert trainer.scaling_config.num_gpus_per_worker == resources.get("GPU", 0.0)


# --- the software ---


def test_what_differs_between_two_hosts_is_named() -> None:
    here = {"code": {"training": {"loop.py": "a" * 64, "job.py": "b"}}, "versions": {"torch": "2.13.0"}, "plugin": None}
    assert different(here, here) == []
    there = {"code": {"training": {"loop.py": "c"}}, "versions": {"torch": "2.12.0"}, "plugin": None}
    assert different(here, there) == [
        "code training job.py",
        "code training loop.py",
        "versions torch 2.12.0 there, 2.13.0 here",
    ]


# --- what a learner meets ---


def learner(folder: Path, coordinator: Coordinator, **values: Any) -> DistributedLearner:
    """One without Ray."""
    assignment = given(
        walk(folder / "walk", **values.pop("mishaps", {})), ONE_LEARNER, coordinator=coordinator, **values
    )

    def call(method: str, *arguments: Any) -> Any:
        return getattr(coordinator, method)(*arguments)

    return DistributedLearner(assignment, 0, 1, call)


def test_a_learner_that_produces_nan_ends_training_with_the_metric(tmp_path: Path) -> None:
    coordinator = Coordinator(None)
    parameters = settings().parameters | {"learning_rate": 1e30, "max_grad_norm": 1e30}
    with pytest.raises(LoomRLError, match=r"training: \w+ is nan after \d+ environment steps; saved checkpoints"):
        learner(tmp_path, coordinator, parameters=parameters).run(lambda config, watchdog: ALONE)


def test_an_environment_that_gets_no_memory_ends_training_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(None)
    alone = learner(tmp_path, coordinator, mishaps={"memory": 600})
    monkeypatch.setattr(Mishaps, "num_steps", 0)
    with pytest.raises(EnvironmentFault, match="MemoryError"):
        alone.run(lambda config, watchdog: ALONE)
    (saved,) = coordinator.take_updates().checkpoints
    assert saved.step == 512


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[Any]:
    """One for all trainings here, with as little memory for objects as Ray takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loomrl.training.distributed.cluster, "_STORE_BYTES", _STORE_BYTES)
        with cluster(DistributedConfig(num_learners=2)) as ray:
            yield ray


@pytest.mark.long
def test_with_a_full_object_store_training_ends_as_ever(small_cluster: Any, tmp_path: Path) -> None:
    """Ray moves what fills it to the disk."""
    kept = [small_cluster.put(np.zeros(_STORE_BYTES // 4, np.uint8)) for _ in range(5)]
    taken = walk(tmp_path / "walk")
    report = train_policy(settings(distributed=ONE_LEARNER), taken, tmp_path / "out", tmp_path / "home")
    assert report.total_env_steps == 3072
    assert all(small_cluster.get(one).size == _STORE_BYTES // 4 for one in kept)


@pytest.mark.long
@pytest.mark.usefixtures("small_cluster")
def test_a_learner_that_is_killed_as_for_want_of_memory_ends_training_with_what_may_have(tmp_path: Path) -> None:
    """The kernel's way; Ray cannot tell who did it."""
    taken = walk(tmp_path / "walk", kill=1500)
    with pytest.raises(LoomRLError, match="lost more often than training.distributed.max_restarts 0") as told:
        train_policy(settings(distributed=ONE_LEARNER), taken, tmp_path / "out", tmp_path / "home")
    assert re.search("OOM killer due to high memory usage", str(told.value))
    (saved,) = (tmp_path / "home" / "checkpoints").iterdir()
    assert [folder.name for folder in sorted(saved.glob("step-*"))][-1:] == ["step-000000001024"]


@pytest.mark.long
@pytest.mark.usefixtures("small_cluster")
def test_a_host_with_other_software_is_named(tmp_path: Path) -> None:
    import ray

    coordinator = ray.remote(Coordinator).remote(None)
    begin, order = same_software(learn, given(walk(tmp_path / "walk"), ONE_LEARNER, coordinator=coordinator))
    order["software"]["versions"]["torch"] = "1.0"
    message = f"host {socket.gethostname()} has other software .*: versions torch .* there, 1.0 here; install the same"
    with pytest.raises(ConfigError, match=message):
        begin(order)
    assert re.search(message, str(ray.get(coordinator.failure.remote())))

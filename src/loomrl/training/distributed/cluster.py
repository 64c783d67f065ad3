"""The Ray cluster that learners and workers run on."""

import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loomrl.errors import ConfigError, ServiceError
from loomrl.system.home import home
from loomrl.system.processors import num_processors
from loomrl.training.config import DistributedConfig

ANSWER_SECONDS = 10.0
GONE_SECONDS = 30.0  # a head that does not answer for so long is gone; Ray itself takes a minute
_ASK_SECONDS = 5.0
_SERVING = b"\x08\x01"  # a HealthCheckResponse whose status is 1
_STORE_BYTES = 2**28  # of a cluster that is begun here: what passes through it is small


@contextmanager
def cluster(config: DistributedConfig) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at the config's address; without an address to a cluster of this
    machine's, begun here and ended afterwards. Where this process is connected already, that connection is used and
    stays.

    Raises:
        ConfigError: when Ray is not installed, the address does not answer, versions differ, or the cluster has too
            little for the learners.
    """
    was_connected = _import_ray().is_initialized()
    if config.address is None and not was_connected:
        _require_processors(config)
    ray = connected(math.ceil(config.resources(config.num_learners)["CPU"]), config.address)
    try:
        _require_resources(ray, config)
        yield ray
    finally:
        if not was_connected:
            ray.shutdown()


def connected(num_cpus: int, address: str | None = None, setting: str = "training.distributed.address") -> Any:
    """The module `ray`, connected to a cluster: the one this process is connected to already, else the one at
    `address`, else one of this machine's. That one is begun here, with `num_cpus` places at least, and ends with this
    process, or with `ray.shutdown`. `setting` is where the address comes from, for messages.

    Raises:
        ConfigError: when Ray is not installed, the address does not answer, or versions differ.
    """
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    if address is not None and address != "auto":
        _require_answer(address, setting)
    begun: dict[str, Any] = {}
    if address is None:
        begun = {
            "num_cpus": max(num_processors(), num_cpus),
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "runtime_env": {"env_vars": {"LOOMRL_HOME": str(home())}},
        }
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **begun)
    except ConnectionError as error:
        raise ConfigError(
            f"{setting} {address!r}: {error}; begin a head with `ray start --head`, or correct the address (`auto` is "
            "that in RAY_ADDRESS, or of what Ray last began here); where a head answers, it refuses this process: "
            "both need the same RAY_AUTH_MODE, and the same token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except (RuntimeError, ValueError) as error:  # RuntimeError: versions differ
        raise ConfigError(f"{setting} {address!r}: {error}") from error
    return ray


def _require_answer(address: str, setting: str) -> None:
    """Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    fix = "begin the head there with `ray start --head`, or correct the address"
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"{setting}: nobody answers at {address} ({error.strerror or error}); {fix}") from error
    if _speaks_plainly() and not _is_healthy(address):
        raise ConfigError(f"{setting}: what answers at {address} is no head of a Ray cluster; {fix}")


def _speaks_plainly() -> bool:
    """Whether Ray's hosts speak to one another without certificates, which Ray alone knows how to present."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("0", "false")


def _is_healthy(address: str) -> bool:
    """As gRPC's health protocol says, which a head speaks to anybody."""
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            return bool(check(b"", timeout=ANSWER_SECONDS) == _SERVING)
        except grpc.RpcError:
            return False


class ClusterHead:
    """The head of the connected Ray cluster, watched from here: when it is gone, Ray would end this process without a
    message."""

    def __init__(self, ray: Any) -> None:
        self._address: str = ray.get_runtime_context().gcs_address
        self._asked = self._answered = time.monotonic()

    def require_answer(self) -> None:
        """Check that the head answers: it is asked every few seconds, however often this is called. Nothing is checked
        where Ray uses TLS.

        Raises:
            ServiceError: when it has not answered for GONE_SECONDS.
        """
        if time.monotonic() - self._asked < _ASK_SECONDS or not _speaks_plainly():
            return
        if _is_healthy(self._address):
            self._answered = time.monotonic()
        self._asked = time.monotonic()
        if self._asked - self._answered > GONE_SECONDS:
            raise ServiceError(
                f"training.distributed: the head of the Ray cluster at {self._address} has not answered for "
                f"{GONE_SECONDS:g} s; saved checkpoints are intact; begin the head and the other hosts again, then run "
                "the same command"
            )


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"training.distributed: {error}; pip install 'loomrl[distributed]'") from error
    return ray


def _require_processors(config: DistributedConfig) -> None:
    """Here learners may take turns, but none has more processors than there are."""
    there = num_processors()
    for name in ("resources_per_learner", "resources_per_worker"):
        if (wanted := getattr(config, name).get("CPU", 0.0)) > there:
            raise ConfigError(
                f"training.distributed.{name}: CPU {wanted:g}, this machine has {there}; lower it, or set "
                "training.distributed.address to a cluster's"
            )


def _require_resources(ray: Any, config: DistributedConfig) -> None:
    there = ray.cluster_resources()
    for name, needed in config.resources(config.fewest_learners).items():
        if there.get(name, 0.0) < needed:
            raise ConfigError(
                f"training.distributed: {_members(config)} need {needed:g} {name}, the Ray cluster has "
                f"{there.get(name, 0.0):g}; lower their number or their resources, or add machines"
            )


def _members(config: DistributedConfig) -> str:
    learners = config.fewest_learners
    workers = learners * config.rollout_workers_per_learner
    return f"{learners} learners" + (f" and {workers} rollout workers" if workers else "")

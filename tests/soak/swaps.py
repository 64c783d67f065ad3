"""Swaps under load: no answer but 200, and no decision by a version older than one already seen, by any worker."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.serving.config import ServingConfig
from loomrl.serving.guardian.config import MonitorsConfig, MonitorWeights
from loomrl.serving.process import ServerProcess
from loomrl.storage.registry import Registry
from loomrl.storage.registry.statements import state_serving
from tests.support.champions import make_champion
from tests.support.policies import discrete_folder
from tests.support.several_workers import pids
from tests.support.steady_load import Load

NUM_SWAPS = 1_000
NUM_WORKERS = 2
_SLOW_IS_FINE = ServingConfig(monitors=MonitorsConfig(weights=MonitorWeights(latency=0)))  # the machine may be busy


def run(folder: Path, num_swaps: int = NUM_SWAPS) -> dict[str, Any]:
    """Move the champion's alias through `num_swaps` ever newer versions, each as soon as the one before has decided.

    Raises:
        AssertionError: when a request fails, an older version decides again, or the server does not follow.
    """
    registry = Registry()
    for number in range(num_swaps + 1):
        version = discrete_folder(folder / f"{number}", value=float(number))
        state_serving(
            registry, registry.register("cartpole", version, f"run-{number}"), _SLOW_IS_FINE.model_dump(mode="json")
        )
    make_champion(registry, "1")
    seconds = []
    server = ServerProcess("cartpole", refresh_seconds=0.05, rate=1e9, workers=NUM_WORKERS)
    with server, server.client() as client, Load(server) as load:
        load.wait_until(lambda: load.num_requests > 10)
        memory = [_resident_bytes(server)]
        for version in range(2, num_swaps + 2):
            started = time.monotonic()
            make_champion(registry, str(version))
            load.wait_until(lambda version=version: load.newest == version)
            seconds.append(time.monotonic() - started)
        memory.append(_resident_bytes(server))
        num_swaps_seen = [
            state["num_swaps"] - 1 for state in client.status()["workers"]
        ]  # the first champion is one, too
    load.check()
    assert num_swaps_seen == [num_swaps] * NUM_WORKERS
    return {
        "num_swaps": num_swaps,
        "num_workers": NUM_WORKERS,
        "num_requests": load.num_requests,
        "num_decisions": load.num_decisions,
        "num_failures": len(load.failures),
        "alias_to_decision_seconds": {
            name: round(float(np.quantile(seconds, share)), 3)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        },
        "server_memory_mb": {
            name: round(size / 2**20, 1) for name, size in zip(("before", "after"), memory, strict=True)
        },
    }


def _resident_bytes(server: ServerProcess) -> int:
    """Of all workers."""
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids(server)]
    return sum(int(text.split("VmRSS:")[1].split()[0]) * 1024 for text in status)

"""Corrupted and wrongly signed versions become champion in the registry: each is refused, the champion decides on."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.registry import Registry
from tests.support.attacks import ATTACKS, Target
from tests.support.champions import make_champion
from tests.support.policies import discrete_folder
from tests.support.steady_load import Load

NUM_VERSIONS = 1_000


def run(folder: Path, num_versions: int = NUM_VERSIONS, seed: int = 5) -> dict[str, Any]:
    """Attack a version in `num_versions` ways drawn from the seed, each kind equally often, and name it champion.

    Raises:
        AssertionError: when one is not refused, the champion is touched, a request fails or a payload is run.
    """
    registry, rng = Registry(), np.random.default_rng(seed)
    good = registry.register("cartpole", discrete_folder(folder / "good"), "run-good").version
    target = Target(registry, folder)
    kinds = rng.permutation([list(ATTACKS)[number % len(ATTACKS)] for number in range(num_versions)])
    make_champion(registry, good)
    server = ServerProcess("cartpole", refresh_seconds=0.05, rate=1e9)
    with server, server.client() as client, Load(server) as load:
        before = client.status()
        for kind in map(str, kinds):
            target.attack(kind, rng)
            make_champion(registry, target.version.version)
            assert f"version {target.version.version}: " in _refusal(client), f"{kind}: taken into service"
            make_champion(registry, good)
            target.restore()
            load.check()
        after = client.status()
    load.check()
    assert load.newest == int(good)
    assert (after["roles"], after["num_swaps"]) == (before["roles"], before["num_swaps"])
    assert not target.loot.sentinel.exists()
    return {
        "num_refused": num_versions,
        "by_kind": dict(sorted(Counter(map(str, kinds)).items())),
        "num_requests": load.num_requests,
        "num_failures": len(load.failures),
        "num_swaps": after["num_swaps"] - before["num_swaps"],
        "seed": seed,
    }


def _refusal(client: PolicyClient) -> str:
    """Why the server does not follow the registry; empty where it does."""
    try:
        client.refresh("cartpole")
    except Refused as refused:
        return str(refused) if refused.status == 409 else ""
    return ""

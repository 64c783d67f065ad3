"""Joining decisions and mirrors, which stand in two chains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.client import Refused
from loomrl.serving.process import ServerProcess
from loomrl.shadow.pairs import PairReader, heads, states
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import SIMULATED, record
from loomrl.storage.registry import PolicyVersion
from tests.support.inside import wait_for
from tests.support.live import decide
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder
from tests.support.several_workers import connected

SEVERAL_PAGES = 10_500  # decisions; a page has 10,000 at most


def version(number: str) -> PolicyVersion:
    return PolicyVersion(policy="cartpole", version=number, run_id="", tags={}, source="", created="")


def mirror(log: AuditLog, decision_id: str, action: int, error: str | None = None) -> None:
    fields = {"action": action, "value": 1.0, "seconds": 1e-5, "error": error, "policy": "cartpole", "episode_id": None}
    entry = record("shadow", decision_id=decision_id, version="2", acting_version="1", **fields)
    log.append([entry | {"agent_id": "a"}])


def test_each_mirror_meets_its_decision_however_far_apart_they_are_read(loomrl_home: Path) -> None:
    acting, shadow = AuditLog("cartpole", "server-0"), AuditLog("cartpole", "server-0-shadow")
    changes = {"seconds": 1e-4, "exploration_flag": False}
    for _ in range(SEVERAL_PAGES):  # a person decided: none of them has a mirror
        decide(acting, "a", None, [0.0] * 4, override={"id": "1"}, **changes)
    ids = [decide(acting, "a", None, row.tolist(), **changes) for row in OBSERVATIONS]
    for index, decision_id in enumerate(ids):
        mirror(shadow, decision_id, index % 2, "not finite" if index == 3 else None)
    acting.close()
    shadow.close()
    server = ServerProcess("cartpole", server="server-0", wait_ready=False)
    with server, server.client() as client:
        reader = PairReader(client, version("2"), version("1"))
        assert reader.read() == len(OBSERVATIONS) - 1
        assert reader.read() == len(OBSERVATIONS) - 1
        behind = PairReader(client, version("2"), version("1"), after={None: (SEVERAL_PAGES + 2, 2)})
        assert behind.read() == len(OBSERVATIONS) - 3
    pairs, rest = reader.pairs("float32"), [0, 1, 2, 4, 5, 6, 7]
    np.testing.assert_array_equal(pairs.observation, OBSERVATIONS[rest])
    assert pairs.mirrored.tolist() == [index % 2 for index in rest]
    assert (pairs.num_errors, len(set(ids))) == (1, len(OBSERVATIONS))


class Recorded:
    """A server whose records are all there, on one page."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records

    def shadow_records(self, decision: int, shadow: int, worker: int | None) -> list[dict[str, Any]]:
        after = {"decision": decision, "shadow": shadow}
        return [one for one in self.records if one["sequence"] > after[one["kind"]]]


@pytest.mark.parametrize("prefix", ["robot-", SIMULATED])
def test_agents_are_the_units_of_real_traffic_and_episodes_of_simulated_traffic(prefix: str) -> None:
    """Three agents with two episodes of two decisions each."""
    records = []
    for number in range(12):
        common = {"decision_id": str(number), "agent_id": f"{prefix}{number // 4}", "episode_id": f"{number // 2}"}
        common |= {"sequence": number, "action": 1, "value": 0.0, "seconds": 1e-4}
        told = {"override": None, "exploration_flag": False, "observation": [0.0] * 4}
        records += [
            record("decision", policy="cartpole", version="1", **common, **told),
            record("shadow", policy="cartpole", version="2", acting_version="1", error=None, **common),
        ]
    simulated = SIMULATED if prefix == SIMULATED else None
    reader = PairReader(Recorded(records), version("2"), version("1"), simulated, after={None: (-1, -1)})
    assert reader.read() == 12
    pairs = reader.pairs("float32")
    assert pairs.num_episodes == 6
    assert pairs.unit.tolist() == [number // 2 if simulated else number // 4 for number in range(12)]


@pytest.mark.long
def test_the_chains_of_several_workers_are_read_as_one(loomrl_home: Path, tmp_path: Path) -> None:
    champion, challenger = discrete_folder(tmp_path / "1"), discrete_folder(tmp_path / "2", -BALANCING)
    server = ServerProcess("cartpole", champion_folder=champion, challenger_folder=challenger, workers=2)
    with server, connected(server, 0) as one, connected(server, 1) as other:
        wait_for(lambda: all(state["roles"]["challenger"] for state in states(one)))
        one.decide("before", OBSERVATIONS[0])
        wait_for(lambda: heads(other)[0][1] >= 0)
        begun = heads(other)
        for client in (one, other) * 2:
            client.decide("a", OBSERVATIONS[0])
        reader = PairReader(other, version(str(challenger)), version(str(champion)), after=begun)
        wait_for(lambda: reader.read() == 4)
        with pytest.raises(Refused, match="name a `worker` from 0 to 1"):
            one.shadow_records()
    assert (reader.pairs("float32").acted != reader.pairs("float32").mirrored).all()

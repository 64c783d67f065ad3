"""Two versions side by side, asked by many agents in one request, as `decide_many` does: through the server's own
application, its log and the whole comparison. What an agent is dealt must not tell when it is counted.

Rewards rise from request to request, agents differ by one standard deviation. Equal versions are called different in
at most 5 % of the streams; bounds of the mean difference cover it; a difference of one standard deviation is found with
100 agents; bounds never contradict each other.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np

from benchmarks.calibration.home import temporary_home
from benchmarks.calibration.topic import Setting, at_most, covers, finds
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import LiveComparison, compare_live
from loomrl.promotion.comparison.window import read_window
from loomrl.serving.settings import ServerSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.inside import Inside
from tests.support.policies import BALANCING, discrete_folder

SOURCES = (
    "src/loomrl/statistics/assignment.py",
    "src/loomrl/promotion/comparison/agents.py",
    "src/loomrl/promotion/comparison/live.py",
    "src/loomrl/promotion/comparison/window.py",
    "src/loomrl/serving/decisions/decider.py",
    "src/loomrl/serving/decisions/records.py",
    "src/loomrl/storage/audit/records.py",
)
_SPAN = (-20.0, 40.0)
_OBSERVATION = [0.01, 0.0, 0.0, 0.0]


@dataclass(frozen=True)
class Fleet:
    """So many agents, asked by so many in one request (0: by any number up to 60), and by how much the challenger is
    better, in standard deviations. Rewards rise by `drift` with each request."""

    num_agents: int
    together: int
    effect: float = 0.0
    drift: float = 0.5

    def sizes(self, rng: np.random.Generator) -> list[int]:
        """How many agents each request is for."""
        found, left = list[int](), self.num_agents
        while left:
            found.append(min(left, self.together or int(rng.integers(1, 61))))
            left -= found[-1]
        return found


@contextmanager
def _server(seed: int) -> Iterator[tuple[Inside, str]]:
    """With the folder of the challenger."""
    with temporary_home() as home:
        folders = [str(discrete_folder(home / name, sign * BALANCING)) for name, sign in (("a", 1), ("b", -1))]
        settings = ServerSettings("cartpole", folders={"champion": Path(folders[0])}, rate=1e9, seed=seed)
        with Inside(settings) as server:
            yield server, folders[1]


async def _play(fleet: Fleet, server: Inside, challenger: str, rng: np.random.Generator, number: int) -> str:
    """One experiment; returns the champion."""
    transport, first, champion = httpx.ASGITransport(app=server.application), 0, ""
    plan = {"split": {challenger: 0.5}, "experiment": f"e{number}", "person": "Ada", "reason": "calibration"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        (await client.put("/plan", json=plan)).raise_for_status()
        for step, size in enumerate(fleet.sizes(rng)):
            agents = [f"{number}-{agent}" for agent in range(first, first + size)]
            asks = [{"agent_id": one, "observation": _OBSERVATION, "episode_id": one} for one in agents]
            decided = (await client.post("/decide", json={"requests": asks})).raise_for_status().json()["decisions"]
            champion = next((one["version"] for one in decided if one["version"] != challenger), champion)
            rewards = rng.normal(size=size) + fleet.drift * step
            feedback = [
                {
                    "decision_id": one["decision_id"],
                    "reward": float(reward + fleet.effect * (one["version"] == challenger)),
                    "terminated": True,
                    "truncated": False,
                }
                for one, reward in zip(decided, rewards, strict=True)
            ]
            (await client.post("/feedback", json={"feedback": feedback})).raise_for_status()
            first += size
    return champion


def _comparisons(fleet: Fleet, rng: np.random.Generator, num_streams: int) -> Iterator[LiveComparison]:
    since: dict[str, int] = {}
    with _server(int(rng.integers(2**31))) as (server, challenger):
        for number, one in enumerate(rng.spawn(num_streams)):
            champion = asyncio.run(_play(fleet, server, challenger, one, int(one.integers(2**40)) + number))
            window = read_window("cartpole", since, [])
            since = window.until
            yield compare_live(window.episodes, (champion, challenger), [], ComparisonConfig(), _SPAN)


def _simulate(fleet: Fleet, rng: np.random.Generator, num_streams: int) -> dict[str, list[bool | None]]:
    found: dict[str, list[bool | None]] = {"called different": [], "mean difference": [], "bounds contradict": []}
    for compared in _comparisons(fleet, rng, num_streams):
        (difference,) = compared.differences
        found["called different"].append(difference.finding != "undecided")
        found["mean difference"].append(difference.low <= fleet.effect <= difference.high)
        found["bounds contradict"].append(compared.refused is not None and "contradict" in compared.refused)
    return {"called better": found["called different"]} if fleet.effect else found


_SAME = (at_most("called different", 0.05), covers("mean difference", 0.95), at_most("bounds contradict", 0.05))
_FLEETS = {
    "60 agents in one request": Fleet(60, 60),
    "240 agents, 12 in a request": Fleet(240, 12),
    "240 agents, 17 in a request": Fleet(240, 17),
    "240 agents, any number in a request": Fleet(240, 0),
    "240 agents, one by one": Fleet(240, 1, drift=0.1),
}
SETTINGS = (
    *(
        Setting(name, partial(_simulate, fleet), _SAME, batch=20, in_gate=fleet.num_agents < 100)
        for name, fleet in _FLEETS.items()
    ),
    Setting(
        "100 agents in one request, one deviation", partial(_simulate, Fleet(100, 100, effect=1.0)),
        (finds("called better", 0.8),), batch=20,
    ),
    Setting(
        "100 agents, 10 in a request, one deviation", partial(_simulate, Fleet(100, 10, effect=1.0, drift=0.05)),
        (finds("called better", 0.8),), batch=20, in_gate=False,
    ),
)  # fmt: skip

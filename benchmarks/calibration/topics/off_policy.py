"""What a champion's log says of a challenger: bounds of the challenger's mean return and of its improvement over the
champion, at 95 %, from logs that the server's own application wrote (`loomrl.promotion.comparison.off_policy`). Agents
differ in how the world answers them, one of eight is broken; the truth is enumerated exactly, for each agent with its
episodes.

A world of two places, as in the tests of the estimators: one of two actions changes place, one place pays 1, the other
costs 0.5, and in the place that pays an episode may end. Every setting is another way to explore, or another thing that
goes wrong in production.
"""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.home import temporary_home
from benchmarks.calibration.topic import Rate, Setting, at_most, covers
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport, estimate
from loomrl.promotion.comparison.window import read_window
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.serving.settings import ServerSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.inside import Inside
from tests.support.policies import discrete_folder
from tests.support.simulated_logs import MOVES_ON, STAYS, greedy, softmax

SOURCES = (
    "src/loomrl/statistics/betting.py",
    "src/loomrl/promotion/comparison/window.py",
    "src/loomrl/promotion/comparison/off_policy",
    "src/loomrl/serving/decisions/choosing.py",
    "src/loomrl/serving/policy/exploration.py",
    "tests/support/simulated_logs.py",
)
NUM_LOGS = 300
_ENDS, _PAYS, _COSTS = 0.2, 1.0, -0.5
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class World:
    """What agents (A,) meet. `moves`: how often it works to change place; `pays`: what the second place pays."""

    moves: Floats
    pays: Floats

    @classmethod
    def fixed(cls) -> "World":
        """Eight agents that differ, one of which is broken: it moves as it likes, and is never paid."""
        return cls(np.linspace(0.6, 0.95, 8), np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 1.0, -0.5]))

    @classmethod
    def drawn(cls, rng: np.random.Generator, number: int) -> "World":
        """A sample of all agents there are: of one in ten the place that pays is broken."""
        broken = rng.random(number) < 0.1
        return cls(rng.uniform(0.6, 1.0, number), np.where(broken, _COSTS, rng.uniform(0.4, 1.0, number)))

    def value(self, agent: int, chances: Floats, steps: int, place: int = 0) -> float:
        """Exactly, of a policy with these probabilities of the second action in both places, (2,)."""
        if steps == 0:
            return 0.0
        changes, total = chances[place] * self.moves[agent], 0.0
        for there, likely in ((1 - place, changes), (place, 1.0 - changes)):
            after = self.value(agent, chances, steps - 1, there) * (1.0 - _ENDS * there)
            total += likely * ((self.pays[agent] if there else _COSTS) + after)
        return float(total)


@dataclass(frozen=True)
class Case:
    """How agents and server explore, and what goes wrong. `asks`: `never`, `always`, in half of the `episodes`, in most
    `decisions`, or `until_paid`."""

    exploration: dict[str, Any]
    asks: str = "never"
    num_steps: int = 3
    num_episodes: int = 80
    config: dict[str, Any] = field(default_factory=dict)
    drifts: bool = False  # in the second half of the log nobody is paid more than half
    breaks_off: bool = False  # the log ends while 6 % run; 3 % of the best rewards are never told
    num_drawn: int = 0  # agents of a population that the claim is about, with units: agents
    over_http: bool = False

    @property
    def settings(self) -> OffPolicyConfig:
        """Everything that is known beforehand is declared."""
        known = {"reward_range": (_COSTS, _PAYS), "max_steps": self.num_steps, "min_effective_sample_size": 5.0}
        return OffPolicyConfig.model_validate(known | self.config)

    @property
    def without_bound(self) -> frozenset[str]:
        """Of what no bound can be had: where no least propensity is declared the greatest weight is not known, and of
        episodes of one step the estimate per decision is importance sampling.
        """
        unknown = () if "min_propensity" in self.config else ("self-normalised", "doubly robust", _UPPER)
        return frozenset((*unknown, *(("per decision",) if self.num_steps == 1 else ())))


class Play:
    """One log of a case: what agents do, step by step, in all episodes at once."""

    def __init__(self, case: Case, rng: np.random.Generator, name: str) -> None:
        self.case, self.rng, number = case, rng, case.num_episodes
        self.world = World.drawn(rng, case.num_drawn) if case.num_drawn else World.fixed()
        self.agent = np.arange(number) % len(self.world.moves)
        self.later = np.arange(number) >= number // 2 if case.drifts else np.zeros(number, bool)
        self.names = [(f"{name}-{agent}", f"{name}-{episode}") for episode, agent in enumerate(self.agent)]
        self.place, self.runs, self.asked = np.zeros(number, int), np.ones(number, bool), rng.random(number) < 0.5
        self.lasts = np.where(rng.random(number) < 0.06, rng.integers(1, case.num_steps + 1, number), case.num_steps)

    def requests(self, step: int) -> list[dict[str, Any]]:
        """Of those that run."""
        if self.case.breaks_off:
            self.runs &= step < self.lasts
        asks = self._asks()
        return [
            {
                "agent_id": self.names[n][0],
                "episode_id": self.names[n][1],
                "observation": [float(self.place[n]), 1.0 - self.place[n], 1.0, 0.0],
                "explore": bool(asks[n]),
            }
            for n in np.flatnonzero(self.runs)
        ]

    def feedback(self, step: int, decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What comes of decisions."""
        running = np.flatnonzero(self.runs)
        action, agent = np.array([one["action"] for one in decisions]), self.agent[running]
        changes = (action == 1) & (self.rng.random(len(running)) < self.world.moves[agent])
        self.place[running] ^= changes
        paid = np.where(self.later[running], 0.5, 1.0) * np.maximum(self.world.pays[agent], 0.0)
        paid = np.where(self.world.pays[agent] < 0.0, self.world.pays[agent], paid)
        reward = np.where(self.place[running] == 1, paid, _COSTS)
        ended = (self.place[running] == 1) & (self.rng.random(len(running)) < _ENDS)
        is_last = np.full(len(running), step == self.case.num_steps - 1)
        told = (
            ended | is_last | (reward < 0.6) | (self.rng.random(len(running)) < (0.97 if self.case.breaks_off else 1.0))
        )
        self.runs[running] = ~ended
        found = zip(decisions, reward.tolist(), ended.tolist(), (is_last & ~ended).tolist(), strict=True)
        return [
            {"decision_id": one["decision_id"], "reward": value, "terminated": over, "truncated": last}
            for (one, value, over, last), is_told in zip(found, told, strict=True)
            if is_told
        ]

    def truths(self, champion: Floats, challenger: Floats) -> tuple[float, float]:
        """The mean value of the challenger, and its improvement, over the episodes of the log; of all agents there are
        where those of the log are a sample of them."""
        world = World.drawn(np.random.default_rng(0), 20_000) if self.case.num_drawn else self.world
        steps, values = self.case.num_steps, []
        for chances in (challenger, champion):
            if self.case.num_drawn:
                values.append(_mean_value(world, chances, steps))
                continue
            half = World(world.moves, np.where(world.pays > 0.0, 0.5 * world.pays, world.pays))
            table = np.array([[one.value(n, chances, steps) for n in range(len(world.moves))] for one in (world, half)])
            values.append(float(table[self.later.astype(int), self.agent].mean()))
        return values[0], values[0] - values[1]

    def _asks(self) -> Bools:
        match self.case.asks:
            case "always":
                return np.ones(len(self.asked), bool)
            case "episodes":
                return self.asked
            case "decisions":
                return np.asarray(self.rng.random(len(self.asked)) < 0.7)
            case "until_paid":
                return np.asarray(self.place == 0)
        return np.zeros(len(self.asked), bool)


def _mean_value(world: World, chances: Floats, steps: int) -> float:
    """The same recursion for all agents at once."""

    def value(place: int, left: int) -> Floats:
        if left == 0:
            return np.zeros(len(world.moves))
        changes = chances[place] * world.moves
        return sum(
            likely * ((world.pays if there else _COSTS) + value(there, left - 1) * (1.0 - _ENDS * there))
            for there, likely in ((1 - place, changes), (place, 1.0 - changes))
        )

    return float(value(0, steps).mean())


# --- servers ----------------------------------------------------------------------------------------------------


def _reports(case: Case, rng: np.random.Generator, num_logs: int) -> Iterator[tuple[OffPolicyReport, float, float]]:
    """Of each log, with the challenger's value and its improvement."""
    with temporary_home() as home:
        folders = [discrete_folder(home / name, weights) for name, weights in (("a", MOVES_ON), ("b", STAYS))]
        since: dict[str, int] = {}
        plays = [Play(case, one, str(number)) for number, one in enumerate(rng.spawn(num_logs))]
        challenger, champion = ServedPolicy.load(folders[1], "challenger"), None
        serve = _over_http if case.over_http else _in_process
        for play, version in serve(case, plays, folders[0], int(rng.integers(2**31))):
            window = read_window("cartpole", since, [])
            since = window.until
            champion = champion or ServedPolicy.load(folders[0], version)
            report = estimate("cartpole", window.episodes, champion, challenger, case.settings)
            yield report, *play.truths(*(_chances(weights, case.settings.acting) for weights in (MOVES_ON, STAYS)))


def _chances(weights: NDArray[np.float32], acting: str) -> Floats:
    """Of the second action in both places."""
    places = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]], np.float32)
    found = greedy(places, weights) if acting == "greedy" else softmax((places @ weights).astype(np.float64))
    return np.asarray(found[:, 1], dtype=np.float64)


def _in_process(case: Case, plays: list[Play], folder: Path, seed: int) -> Iterator[tuple[Play, str]]:
    """The server's application without a port; each play with the version that decided, once it is over."""
    exploration = ExplorationConfig.model_validate(case.exploration)
    settings = ServerSettings("cartpole", folders={"champion": folder}, exploration=exploration, rate=1e9, seed=seed)
    with Inside(settings) as server:

        async def play_all(play: Play) -> str:
            transport = httpx.ASGITransport(app=server.application)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await _play(play, client)

        for play in plays:
            yield play, asyncio.run(play_all(play))


def _over_http(case: Case, plays: list[Play], folder: Path, seed: int) -> Iterator[tuple[Play, str]]:
    """The same on a server of its own, over its port."""
    explore = ",".join(f"{name}={value}" for name, value in case.exploration.items())
    server = ServerProcess(
        "cartpole", champion_folder=folder, explore=explore, rate=1e9, seed=seed, ready_seconds=900.0
    )

    async def play_all(play: Play) -> str:
        async with httpx.AsyncClient(base_url=server.url, timeout=120.0) as client:
            return await _play(play, client)

    with server:
        for play in plays:
            yield play, asyncio.run(play_all(play))


async def _play(play: Play, client: httpx.AsyncClient) -> str:
    version = ""
    for step in range(play.case.num_steps):
        requests = play.requests(step)
        if not requests:
            break
        decided = (await client.post("/decide", json={"requests": requests})).raise_for_status().json()["decisions"]
        version = decided[0]["version"]
        feedback = play.feedback(step, decided)
        (await client.post("/feedback", json={"feedback": feedback})).raise_for_status()
    return version


# --- outcomes ---------------------------------------------------------------------------------------------------

_BOUNDS = ("importance sampling", "per decision", "self-normalised", "doubly robust")
_LOWER, _UPPER, _REFUSED = "improvement, lower bound", "improvement, upper bound", "mean weight contradicts 1"
_NO_BASIS = "a bound that has no basis"  # `Case.without_bound`: there must be none


def _simulate(case: Case, rng: np.random.Generator, num_streams: int) -> dict[str, list[bool | None]]:
    found: dict[str, list[bool | None]] = {name: [] for name in (*_BOUNDS, _LOWER, _UPPER, _REFUSED)}
    without = sorted(case.without_bound)
    for report, truth, gain in _reports(case, rng, num_streams):
        lows = {one.estimator: one.low for one in report.estimates}
        for name in _BOUNDS:
            low = lows.get(name)
            found[name].append(None if low is None else low <= truth + 1e-9)
        more = report.improvement
        found[_LOWER].append(None if more is None or more.low is None else more.low <= gain + 1e-9)
        found[_UPPER].append(None if more is None or more.high is None else more.high >= gain - 1e-9)
        found[_REFUSED].append("contradicts 1" in report.refused)
    if without:
        made = zip(*(found.pop(name) for name in without), strict=True)
        found[_NO_BASIS] = [any(value is not None for value in values) for values in made]
    return found


def _rates(case: Case) -> tuple[Rate, ...]:
    bounds = [name for name in (*_BOUNDS, _LOWER, _UPPER) if name not in case.without_bound]
    basis = (at_most(_NO_BASIS, 0.0),) if case.without_bound else ()
    return (*(covers(name, 0.95) for name in bounds), *basis, at_most(_REFUSED, 0.01))


_EPSILON: dict[str, Any] = {"kind": "epsilon", "epsilon": 0.5}
_SHARE: dict[str, Any] = {"kind": "epsilon", "epsilon": 1.0, "share": 0.4}
_CASES = {
    "agents always ask, epsilon": Case(_EPSILON, "always", config={"min_propensity": 0.25}),
    "single decisions, agents always ask": Case(_EPSILON, "always", 1, config={"min_propensity": 0.25}),
    "agents ask in half of their episodes": Case(
        _EPSILON, "episodes", num_episodes=160, config={"min_propensity": 0.25}
    ),
    "server's share 0.4": Case(_SHARE, config={"min_propensity": 0.2}),
    "server's share 0.05": Case(_SHARE | {"share": 0.05}, num_episodes=160),
    "share, and agents ask in half of their episodes": Case(_SHARE, "episodes", config={"min_propensity": 0.2}),
    "share, and agents ask in most decisions": Case(_SHARE, "decisions", config={"min_propensity": 0.2}),
    "agents ask in most decisions, no share": Case(_EPSILON, "decisions", config={"max_left_out_share": 0.9}),
    "share, and agents ask until they are paid": Case(_SHARE, "until_paid", config={"min_propensity": 0.2}),
    "softmax, both versions greedy": Case({"kind": "softmax", "temperature": 2.0}, "always"),
    "both versions sampled": Case({"kind": "policy"}, "always", config={"acting": "sampled"}),
    "the world drifts": Case(_SHARE, config={"min_propensity": 0.2}, drifts=True),
    "episodes and rewards are missing": Case(_SHARE, config={"min_propensity": 0.2}, breaks_off=True),
    "claims about other agents": Case(_SHARE, config={"units": "agents", "min_propensity": 0.2}, num_drawn=40),
}
_HTTP = Case(_SHARE, config={"min_propensity": 0.2}, over_http=True)
SETTINGS = (
    *(Setting(name, partial(_simulate, case), _rates(case), NUM_LOGS, 20) for name, case in _CASES.items()),
    Setting(
        "server's share 0.4, over HTTP",
        partial(_simulate, _HTTP),
        _rates(_HTTP),
        num_streams=20,
        batch=20,
        in_gate=False,
    ),
)

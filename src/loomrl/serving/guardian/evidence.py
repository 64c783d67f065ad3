"""What is gathered about one version, as plain values: what its agents showed, its open episodes, its experiment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loomrl.serving.guardian.monitor import Monitor, Trigger
from loomrl.serving.guardian.tokens import (
    LEAST_REQUESTS,
    RequestCounts,
    SteadyCounts,
    Suspicion,
    token_of,
    windows_between,
    without,
)
from loomrl.serving.guardian.trial import Arm, Place
from loomrl.types import Json

MOST_WAITING = 100_000  # decisions whose reward is to come; the oldest are forgotten, as if it never came
_WINDOW_CHARACTERS = len("2026-01-01T00:0")  # of a timestamp: ten minutes

Key = tuple[str, str]  # agent_id, episode_id
RewardPlace = tuple[int, int, str]  # of a decision among its agent's in life and in the window, and the window
DealtBefore = dict[str, dict[str, str]]  # experiment -> agent -> when it was dealt, ISO 8601, in an arm that is no more


@dataclass(slots=True)
class LiveEpisode:
    """A named episode as far as one version decided in it. It made `num_decisions` there; `num_rewards` of their
    rewards have come, and `total` is the sum of those.
    """

    agent_id: str
    episode_id: str
    cut: bool  # another decided in it too: its return is not this version's
    number: int = 0  # among the agent's episodes since the version began, from 1 on
    number_in_window: int = 0
    window: str = ""  # in which it began
    is_part: bool = False  # another version decided in it
    decided_last: bool = False  # this version: the next state is what that led to
    is_taken_over: bool = False  # another decided last: the version finds the state that led to
    found_broken: list[str] = field(default_factory=list)  # monitors of its state, as it was found, and has stayed
    return_place: Place = (0, 0)  # among the agent's returns in its experiment
    num_decisions: int = 0
    num_rewards: int = 0
    total: float = 0.0
    ended: bool = False
    broken: list[str] = field(default_factory=list)  # monitors of limits per episode that it broke

    @property
    def key(self) -> Key:
        """Agent and episode id, by which open episodes are told apart."""
        return self.agent_id, self.episode_id

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and every reward of it has come."""
        return self.ended and self.num_rewards >= self.num_decisions


@dataclass
class Counts:
    """How many values of a kind each agent has had."""

    before: dict[str, int] = field(default_factory=dict)  # the window began
    window: dict[str, int] = field(default_factory=dict)

    def count(self, agent_id: str, more: int = 1) -> tuple[int, int]:
        """Count `more` values of an agent; returns the number of the last one in all, and in the window."""
        number = self.window[agent_id] = self.window.get(agent_id, 0) + more
        return self.before.get(agent_id, 0) + number, number

    def of(self, agent_id: str) -> tuple[int, int]:
        """How many values one agent has had before the window, and in it."""
        return self.before.get(agent_id, 0), self.window.get(agent_id, 0)

    def without(self, token: str) -> "Counts":
        """A copy with the counts of agents whose token is another than this one."""
        return Counts(without(self.before, token), without(self.window, token))

    def begin_window(self) -> None:
        """Begin a new window: what was counted in the last one is added to the counts from before."""
        self.before = {agent: sum(self.of(agent)) for agent in self.before | self.window}
        self.window = {}


@dataclass
class VersionEvidence:
    """All that was gathered about one version, as plain values.

    Attributes:
        requests: how many each agent has made.
        monitors: by name, those that the version is watched by.
        requests_by_token: how many were made under each token, and `steady_requests_by_token` the same, up to a limit
            in every ten seconds.
        trigger: why the version was taken out; None while no monitor refutes it.
    """

    version: str
    num_decisions: int = 0  # its own
    num_seen: int = 0  # records about it
    begun: str = ""  # the window it began in
    window: str = ""  # the newest
    unnamed: dict[str, bool] = field(default_factory=dict)  # agent -> whether its first request named no episode
    requests: Counts = field(default_factory=Counts)
    episodes: Counts = field(default_factory=Counts)  # of agents that name them
    monitors: dict[str, Monitor] = field(default_factory=dict)
    arm: Arm | None = None  # in the newest experiment
    before: DealtBefore = field(default_factory=dict)  # of its server, where it is shared
    num_experiments: int = 0
    homes: dict[str, int] = field(default_factory=dict)  # agent -> revision of LoomDB's by which it was known first
    window_homes: dict[str, int] = field(default_factory=dict)  # the same since the window began
    open_episodes: list[LiveEpisode] = field(default_factory=list)  # in the order they began
    requests_by_token: RequestCounts = field(default_factory=RequestCounts)
    steady_requests_by_token: SteadyCounts = field(default_factory=SteadyCounts)
    reward_places: dict[str, RewardPlace] = field(default_factory=dict)  # by decision: those whose reward is to come
    trigger: Trigger | None = None
    suspicions: dict[str, Suspicion] = field(default_factory=dict)  # by monitor, the newest

    def without(self, token: str) -> "VersionEvidence":
        """A copy without what agents of this token have shown. Its numbers of decisions and of records, its counts by
        token, its trigger and its suspicions stay those of all.
        """
        return replace(
            self,
            unnamed=without(self.unnamed, token),
            requests=self.requests.without(token),
            episodes=self.episodes.without(token),
            monitors={name: one.without(token) for name, one in self.monitors.items()},
            arm=None if self.arm is None else replace(self.arm, agents=without(self.arm.agents, token)),
        )

    def num_agents_by_token(self) -> Counter[str]:
        """How many agents asked under each token that may speak for any agent, by the token's name."""
        return Counter(token for token in map(token_of, self.unnamed) if token)

    def enter_experiment(self, experiment: str | None, is_champion: bool) -> Arm | None:
        """Note that agents are dealt to this version by this experiment, as its champion or as what is held against it.

        Where the experiment or the part in it is another than before, `arm` begins anew without agents and returns; the
        one before is returned. None: no experiment deals agents any more, and `arm` is None.
        """
        former = self.arm
        if experiment is None:
            self.arm = None
        elif former is None or (former.experiment, former.is_champion) != (experiment, is_champion):
            self.num_experiments += 1
            self.arm = Arm(experiment, is_champion, self.num_experiments)
        return former if former is not self.arm else None

    def count_requests(self, requests: Mapping[str, int], timestamp: str) -> None:
        """Count requests: `requests` is their number under each token, `timestamp` (ISO 8601) when they were made.

        Those of agents whose tokens speak for them alone stand under an empty text.
        """
        self.requests_by_token.add(requests)
        self.steady_requests_by_token.add_at(requests, timestamp)

    def others_request_as_much(self, token: str) -> bool:
        """Whether other tokens ask for as many decisions as this one, and for enough (100) to have seen a fault."""
        counts = self.requests_by_token, self.steady_requests_by_token
        return any(one.under_others(token) >= max(LEAST_REQUESTS, one.under(token)) for one in counts)

    def enter_window(self, timestamp: str) -> None:
        """Begin the window of ten minutes that this time (ISO 8601) is in: what comes now belongs to it.

        A time in the present window, or an earlier one from a clock that was put back, changes nothing.
        """
        window = timestamp[:_WINDOW_CHARACTERS]
        if window <= self.window:
            return
        self.begun, self.window, self.window_homes = self.begun or window, window, {}
        self.requests_by_token.enter_window(window)
        self.steady_requests_by_token.enter_window(window)
        for counts in (self.requests, self.episodes):
            counts.begin_window()
        for monitor in self.monitors.values():
            monitor.window = {}

    def describe(self) -> Json:
        """Decisions, agents, trigger and suspicions as JSON values; `control` is None and `monitors` is empty, as they
        are of a version whose monitors are not at work.
        """
        trigger = None if self.trigger is None else self.trigger.to_json() | {"reason": self.trigger.reason}
        return {
            "control": None,
            "num_decisions": self.num_decisions,
            "num_agents": len(self.unnamed),
            "trigger": trigger,
            "suspicions": [one.to_json() | {"reason": one.reason} for one in self.suspicions.values()],
            "monitors": {},
        }

    @property
    def num_windows_before(self) -> int:
        """How many windows of ten minutes the newest comes after the first; those without a decision count too."""
        return windows_between(self.begun, self.window)

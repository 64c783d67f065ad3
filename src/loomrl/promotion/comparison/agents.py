"""The units of a live comparison: agents that a split dealt to one of two versions, and what each is worth.

An agent counts once in an experiment, for the version it was dealt at its first decision there that chance had a part
in, whatever decided later (intention to treat). Its value is the mean of its first episodes that began in the
experiment. Agents stand in the order of their first decisions. When a version comes in that could not decide then,
another champion say, it may decide for the agents of one version and not for those of the other: from that decision on
nothing of the agent counts, and an agent that was dealt before is no agent of a comparison with the new one.

How many episodes: 1, 4, 16, ..., each number a stage of its own, with a part of the level. An agent with fewer is
waited for until a window since its first decision is over: twice the time in which the first ten agents came to that
many. Then those count that it began within the window. The window runs on the experiment's own clock, the beginning of
its newest episode, and is the same for all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from loomrl.promotion.comparison.window import Assignment, WindowEpisode
from loomrl.statistics.assignment import Units

Interval = tuple[float, float]
_FEW = 10  # agents whose pace sets a stage's window
_GROWTH = 4  # from one stage's number of episodes to the next
_FACTOR = 2.0  # of the time that those few took


@dataclass
class Agent:
    """One agent in one experiment: what it was dealt at its first decision there, the episodes that began there, in
    their order, and at which age each began, in seconds since that decision. `until` is the time (ISO 8601) of its
    first decision there with a version that was not in the experiment at first; empty where there is none."""

    assignment: Assignment  # of its first decision there
    asked: bool = False  # to explore, in that decision
    until: str = ""  # ISO 8601
    episodes: list[WindowEpisode] = field(default_factory=list)  # that began there, in their order
    ages: list[float] = field(default_factory=list)  # at which they began, in seconds since the first decision


@dataclass(frozen=True)
class Stage:
    """How many episodes of each agent count, and how long after its first decision they may begin at the latest.

    `number` counts stages from 0 on; in the first one the window is infinite.
    """

    number: int  # from 0 on
    num_episodes: int
    window_seconds: float

    @property
    def share(self) -> float:
        """The stage's part of a level: all stages together spend it once."""
        return 1.0 / ((self.number + 1) * (self.number + 2))


@dataclass(frozen=True)
class AgentComparison:
    """All agents dealt to one of two versions, in the order of their first decisions.

    `clocks` holds for each experiment the POSIX time at which its newest episode began. `cut` are the experiments that
    are left out because a log's beginning was removed while they were in force: who was dealt before is not known.
    """

    champion: str
    challenger: str
    agents: list[Agent]
    clocks: dict[str, float]  # experiment -> POSIX time at which its newest episode began
    cut: Sequence[str] = ()  # experiments

    def counts(self) -> tuple[int, int]:
        """How many agents were dealt to the champion, and how many to the challenger."""
        num_challenger = sum(agent.assignment.version == self.challenger for agent in self.agents)
        return len(self.agents) - num_challenger, num_challenger

    def stages(self) -> list[Stage]:
        """The stages that enough agents have reached, the first one always."""
        found = [Stage(0, 1, float("inf"))]
        while True:
            number, num_episodes = len(found), _GROWTH ** len(found)
            there = [
                (seconds(agent.episodes[num_episodes - 1].began), agent.ages[num_episodes - 1])
                for agent in self.agents
                if len(agent.episodes) >= num_episodes
            ]
            if len(there) < _FEW:
                return found
            found.append(Stage(number, num_episodes, _FACTOR * max(age for _, age in sorted(there)[:_FEW])))

    def units(self, stage: Stage, interval: Callable[[WindowEpisode], Interval], span: Interval) -> Units:
        """The agents' values in a stage, in the order of the agents.

        `interval` says between what an episode's value is known to lie, and `span`, (least, greatest), holds all of
        them. An agent whose episodes are still waited for has the whole span.
        """
        values = np.array([self._value(agent, stage, interval, span) for agent in self.agents]).reshape(-1, 2)
        dealt = [agent.assignment.version == self.challenger for agent in self.agents]
        chances = [self.chance(agent.assignment) for agent in self.agents]
        return Units(np.array(dealt, dtype=bool), np.array(chances, dtype=np.float64), values[:, 0], values[:, 1])

    def chance(self, assignment: Assignment) -> float:
        """The probability that an agent that was dealt to one of the two was dealt to the challenger.

        Old records tell the share of one version only; the other's is then the rest.
        """
        shares = assignment.shares
        if assignment.is_partial:
            (version, share), *_ = shares.items()
            return share if version == self.challenger else 1.0 - share
        return shares[self.challenger] / (shares[self.challenger] + shares[self.champion])

    def _value(
        self, agent: Agent, stage: Stage, interval: Callable[[WindowEpisode], Interval], span: Interval
    ) -> Interval:
        first = [
            episode
            for episode, age in zip(agent.episodes[: stage.num_episodes], agent.ages, strict=False)
            if age <= stage.window_seconds
        ]
        clock = self.clocks[agent.assignment.experiment]
        end = min(clock, seconds(agent.until)) if agent.until else clock
        age = end - seconds(agent.assignment.time)
        if len(first) < stage.num_episodes and (not first or age <= stage.window_seconds):
            return span
        known = [interval(episode) for episode in first]
        return float(np.mean([low for low, _ in known])), float(np.mean([high for _, high in known]))


def trial_of(episodes: Iterable[WindowEpisode], champion: str, challenger: str, explored: bool) -> AgentComparison:
    """The agents of all experiments that dealt both versions, with the episodes that began in them.

    `explored` takes the agents that asked to explore in their first decision in an experiment, else the others are
    taken, with all their episodes: whether they ask later may depend on their version. Without such an experiment there
    are no agents.
    """
    episodes = sorted(episodes, key=lambda episode: (episode.began, episode.agent_id))
    agents = _agents(episodes)
    clocks: dict[str, float] = {}
    for assignment, episode in _in_experiments(episodes):
        clocks[assignment.experiment] = max(clocks.get(assignment.experiment, 0.0), seconds(episode.began))
    cut = {one.experiment for one, _ in _in_experiments(episodes) if one.is_cut}
    left = cut | _experiments_of_several(agents.values(), champion, challenger)
    chosen = sorted(
        (agent.assignment.time, experiment, name, agent)
        for (experiment, name), agent in agents.items()
        if experiment not in left and agent.asked == explored and _is_of_both(agent.assignment, champion, challenger)
    )
    return AgentComparison(champion, challenger, [agent for *_, agent in chosen], clocks, sorted(cut))


def _agents(episodes: Sequence[WindowEpisode]) -> dict[tuple[str, str], Agent]:
    """Every agent of every experiment, by the names of both, with the episodes that count."""
    agents: dict[tuple[str, str], Agent] = {}
    for assignment, episode in _in_experiments(episodes):
        key = assignment.experiment, episode.agent_id
        if assignment.is_random and (key not in agents or assignment.time < agents[key].assignment.time):
            agents[key] = Agent(assignment, episode.asked_at(assignment.time))
    dealt = [
        (agent, assignment, episode)
        for assignment, episode in _in_experiments(episodes)
        if (agent := agents.get((assignment.experiment, episode.agent_id))) is not None
        and assignment.time >= agent.assignment.time
    ]
    for agent, assignment, _ in dealt:
        if _has_other_arms(assignment, agent.assignment):
            agent.until = min(agent.until or assignment.time, assignment.time)
    for agent, assignment, episode in dealt:
        if assignment.time == episode.began and not (agent.until and assignment.time >= agent.until):
            agent.episodes.append(episode.decided_before(agent.until) if agent.until else episode)
            agent.ages.append(seconds(episode.began) - seconds(agent.assignment.time))
    return agents


def _in_experiments(episodes: Iterable[WindowEpisode]) -> Iterator[tuple[Assignment, WindowEpisode]]:
    return ((assignment, episode) for episode in episodes for assignment in episode.assignments.values())


def _has_other_arms(later: Assignment, first: Assignment) -> bool:
    """Whether a version can decide that could not at first; old records do not tell."""
    return bool(first.arms) and not later.arms <= first.arms


def _is_of_both(assignment: Assignment, champion: str, challenger: str) -> bool:
    """Whether an agent was dealt to one of two versions when it could have been dealt to the other."""
    both = {champion, challenger}
    return assignment.version in both and (assignment.is_partial or both <= assignment.arms)


def _experiments_of_several(agents: Iterable[Agent], champion: str, challenger: str) -> set[str]:
    """Experiments in which old records leave open how the shares of more than two versions were."""
    told = [agent.assignment for agent in agents]
    partly = {one.experiment for one in told if one.is_partial}
    return {one.experiment for one in told if one.version not in (champion, challenger)} & partly


def seconds(time: str) -> float:
    """POSIX time, in seconds, of an ISO 8601 time; ValueError for what is none."""
    return datetime.fromisoformat(time).timestamp()

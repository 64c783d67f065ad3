"""Traffic for a policy server: episodes of the real environment, several agents at once, over HTTP."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from loomrl.serving.client import Ask, Decision, Outcome, PolicyClient, Refused
from loomrl.shadow.config import MOST_TIMES
from loomrl.storage.audit.records import SIMULATED

_MAX_AGENTS = 16
_TOO_MANY_REQUESTS = 429


@dataclass
class _Agent:
    """One environment and the episode it is in."""

    agent_id: str
    env: gymnasium.Env[Any, Any]
    obs: Any = None
    seed: int = -1

    def reset(self, seed: int) -> None:
        self.seed = seed
        self.obs, _ = self.env.reset(seed=seed)

    def ask(self) -> Ask:
        return Ask(self.agent_id, self.obs, f"{self.agent_id}-{self.seed}")


@dataclass
class Driven:
    """What drove the server: to tell its records from those of others, and to check what it answered.

    `agent_prefix` begins the ids of all its agents, and of no others. `observations` and `actions` have an entry for
    each decision, in their order; `num_episodes` counts those that ended.
    """

    agent_prefix: str
    num_decisions: int = 0
    num_episodes: int = 0
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)


def drive(
    client: PolicyClient,
    snapshot_folder: Path,
    first_seed: int,
    num_episodes: int,
    min_decisions: int,
    on_decisions: Callable[[int], None] | None = None,
    agent_prefix: str = SIMULATED,
) -> Driven:
    """Play at least `num_episodes` episodes, and more (at most `MOST_TIMES` as many) until `min_decisions` are reached.

    Every agent asks for each step of its own environment and sends the reward as feedback. Seeds are `first_seed` and
    those after it. Where the rate limit says to wait, agents wait. `on_decisions` is told the decisions so far.

    Raises:
        ServiceError: when the server cannot be reached, or refuses for another reason.
        EnvironmentFault: when the environment breaks its API.
        ArtifactError: when the snapshot was changed.
        ConfigError: when a package the environment needs is missing.
    """
    driven = Driven(agent_prefix=f"{agent_prefix}{secrets.token_hex(4)}-")
    seeds = _seeds(driven, first_seed, num_episodes, min_decisions)
    with _agents(snapshot_folder, driven.agent_prefix, min(_MAX_AGENTS, num_episodes)) as agents:
        active = [agent for agent in agents if _begin(agent, seeds)]
        while active:
            decisions = _decide(client, active)
            outcomes = [_step(agent, decision) for agent, decision in zip(active, decisions, strict=True)]
            driven.observations += [agent_obs for agent_obs, _ in outcomes]
            driven.actions += [decision.action for decision in decisions]
            driven.num_decisions += len(decisions)
            client.feedback_many([outcome for _, outcome in outcomes])
            ended = [outcome.terminated or outcome.truncated for _, outcome in outcomes]
            driven.num_episodes += sum(ended)
            active = [agent for agent, over in zip(active, ended, strict=True) if not over or _begin(agent, seeds)]
            if on_decisions is not None:
                on_decisions(driven.num_decisions)
    return driven


def _seeds(driven: Driven, first_seed: int, num_episodes: int, min_decisions: int) -> Iterator[int]:
    for index in range(MOST_TIMES * num_episodes):
        if index >= num_episodes and driven.num_decisions >= min_decisions:
            return
        yield first_seed + index


def _begin(agent: _Agent, seeds: Iterator[int]) -> bool:
    seed = next(seeds, None)
    if seed is None:
        return False
    agent.reset(seed)
    return True


def _decide(client: PolicyClient, active: list[_Agent]) -> list[Decision]:
    """Ask; where the rate limit says to wait, wait."""
    asks = [agent.ask() for agent in active]
    while True:
        try:
            return client.decide_many(asks)
        except Refused as refused:
            if refused.status != _TOO_MANY_REQUESTS or refused.retry_after_seconds is None:
                raise
            time.sleep(refused.retry_after_seconds)


def _step(agent: _Agent, decision: Decision) -> tuple[Any, Outcome]:
    """Act; returns the observation the decision was for and what came of it."""
    before = agent.obs
    space = agent.env.action_space
    action = decision.action
    if not isinstance(space, gymnasium.spaces.Discrete):
        action = np.asarray(action, dtype=space.dtype)
    agent.obs, reward, terminated, truncated, _ = agent.env.step(action)
    return before, Outcome(decision.decision_id, float(reward), bool(terminated), bool(truncated))


@contextlib.contextmanager
def _agents(snapshot_folder: Path, prefix: str, num_agents: int) -> Iterator[list[_Agent]]:
    from loomrl.environment.make import make_env

    with contextlib.ExitStack() as stack:
        agents = []
        for index in range(num_agents):
            env = make_env(snapshot_folder)
            stack.callback(env.close)
            agents.append(_Agent(f"{prefix}{index}", env))
        yield agents

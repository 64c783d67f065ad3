"""Logs of policies whose true values are known, for tests of estimates from them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.promotion.package import EPISODES
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.registry import PolicyVersion, Registry
from tests.support.live import decide, reward
from tests.support.policies import discrete_folder

Probabilities = Callable[[np.ndarray], np.ndarray]  # of observations (N, 4), those of the actions, (N, 2)

CHAMPION = np.array([[1.0, -1.0], [0.5, 0.0], [0.0, 0.5], [0.0, 0.0]], dtype=np.float32)
CHALLENGER = np.array([[1.0, -1.0], [-0.5, 0.5], [0.0, 0.5], [0.3, 0.0]], dtype=np.float32)
MOVES_ON = np.array([[-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype=np.float32)  # in the chain, always
STAYS = np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype=np.float32)  # where it is paid


def episode(steps: Sequence[tuple[Any, Any, float, float]], version: str = "1", **changes: Any) -> WindowEpisode:
    """One that terminated, of (observation, action, propensity, reward) a step; explored unless told otherwise."""
    observations, actions, propensities, rewards = (list(column) for column in zip(*steps, strict=True))
    told = {"ended": True, "terminated": True, "explored": [True] * len(steps)} | changes
    return WindowEpisode(
        cut=False,
        deciders=told.pop("deciders", [version] * len(steps)),
        asked=told.pop("asked", told["explored"]),
        fallbacks=[False] * len(steps),
        observations=observations,
        actions=actions,
        values=[0.0] * len(steps),
        propensities=propensities,
        rewards=dict(zip(map(str, range(len(steps))), rewards, strict=True)),
        **told,
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def greedy(observations: np.ndarray, weights: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    """Probabilities (N, A) of a linear policy's choice, each other one with epsilon / A."""
    best = np.argmax(observations @ weights, axis=1)
    return np.asarray((1.0 - epsilon) * np.eye(weights.shape[1])[best] + epsilon / weights.shape[1])


class Bandit:
    """One decision an episode: who leans like the first two numbers earns 1 more often, with the right action."""

    def observations(self, rng: np.random.Generator, number: int) -> np.ndarray:
        return rng.normal(size=(number, 4)).astype(np.float32)

    def mean_reward(self, observations: np.ndarray) -> np.ndarray:
        """Of each action, (N, 2)."""
        lean = np.tanh(observations[:, 0] - observations[:, 1])
        return np.stack([0.5 + 0.4 * lean, 0.5 - 0.4 * lean], axis=1)

    def value(self, probabilities: Probabilities) -> float:
        """Of a policy that gives observations these probabilities, to three digits."""
        observations = self.observations(np.random.default_rng(0), 1_000_000)
        return float((probabilities(observations) * self.mean_reward(observations)).sum(axis=1).mean())

    def log(self, rng: np.random.Generator, number: int, probabilities: Probabilities) -> list[WindowEpisode]:
        observations = self.observations(rng, number)
        given = probabilities(observations)
        actions = (rng.random(number) >= given[:, 0]).astype(int)
        rewards = rng.random(number) < self.mean_reward(observations)[np.arange(number), actions]
        return [
            episode([(obs.tolist(), int(action), float(chances[action]), float(reward))])
            for obs, action, chances, reward in zip(observations, actions, given, rewards, strict=True)
        ]


class Chain:
    """Three steps between two places; action 1 changes place, which succeeds with 0.8. The second place pays 1, the
    first costs 0.5, and in the second place an episode ends with 0.2. Observed as [place, 1 - place, 1, 0]."""

    num_steps, moves, ends = 3, 0.8, 0.2

    def observation(self, place: int) -> list[float]:
        return [float(place), 1.0 - place, 1.0, 0.0]

    def value(self, probabilities: Probabilities, place: int = 0, steps: int = 3) -> float:
        """Exactly, by recursion."""
        if steps == 0:
            return 0.0
        total = 0.0
        for action, chance in enumerate(probabilities(np.array([self.observation(place)], np.float32))[0]):
            for there, likely in self._outcomes(place, action):
                after = self.value(probabilities, there, steps - 1) * (1.0 - self.ends * there)
                total += chance * likely * (self._reward(there) + after)
        return total

    def log(self, rng: np.random.Generator, number: int, probabilities: Probabilities) -> list[WindowEpisode]:
        chances = probabilities(np.array([self.observation(place) for place in (0, 1)], np.float32))
        return [self._play(rng, chances) for _ in range(number)]

    def _play(self, rng: np.random.Generator, chances: np.ndarray) -> WindowEpisode:
        place, steps = 0, []
        while len(steps) < self.num_steps:
            action = int(rng.random() >= chances[place, 0])
            there = place ^ int(action == 1 and rng.random() < self.moves)
            steps.append((self.observation(place), action, float(chances[place, action]), self._reward(there)))
            place = there
            if place == 1 and rng.random() < self.ends:
                return episode(steps)
        return episode(steps, terminated=False)

    def _outcomes(self, place: int, action: int) -> list[tuple[int, float]]:
        return [(place, 1.0)] if action == 0 else [(1 - place, self.moves), (place, 1.0 - self.moves)]

    def _reward(self, place: int) -> float:
        return 1.0 if place == 1 else -0.5


def register_linear(folder: Path, weights: np.ndarray, registry: Registry, returns: Sequence[float]) -> PolicyVersion:
    """A version of `cartpole` that really decides, with the returns of its evaluation."""
    export = discrete_folder(folder, weights)
    table = pa.table({"seed": list(range(len(returns))), "episode_return": [float(value) for value in returns]})
    pq.write_table(table, export / EPISODES)
    return registry.register("cartpole", export, folder.name)


def write_log(log: AuditLog, episodes: Sequence[WindowEpisode], agent: str = "a", **changes: Any) -> None:
    """Put whole episodes on record, as a server does."""
    for number, one in enumerate(episodes):
        version, last = one.deciders[0], len(one.actions) - 1
        for step, value in enumerate(one.rewards.values()):
            told = {"action": one.actions[step], "propensity": one.propensities[step]}
            told["exploration_flag"] = one.explored[step]
            decision = decide(log, agent, f"{version}-{number}", one.observations[step], version, **told, **changes)
            reward(log, decision, agent, f"{version}-{number}", value or 0.0, ended=step == last)

"""Fitted Q evaluation: what a policy would earn, by a model of the rewards and of what follows, learnt from the log.

Ernst, Geurts and Wehenkel, Tree-based batch mode reinforcement learning (2005), for evaluation as in Le, Voloshin and
Yue, Batch policy learning under constraints (2019), algorithm 3, with finite horizons: the k-th model is of the reward
of the k steps to come. Ridge regression on the observation and on random Fourier features of it (Rahimi and Recht,
2007), for each choice of its own, or on observation and action together where actions are continuous.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import LoggedEpisodes
from loomrl.promotion.comparison.off_policy.target import choice_index, choice_probabilities, continuous_actions
from loomrl.serving.policy.model import ServedPolicy

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]
_NUM_FOURIER = 64
_NUM_SAMPLES = 16  # actions of a continuous policy that is sampled
_RIDGE = 0.1
_SEED = 20_261_122
_FIRST_BLOCKS = (1 / 8, 1 / 4, 1 / 2)  # of the episodes: where the model is learnt anew


class Regression(Protocol):
    """A linear model of the values of a log's S steps, by the actions that were taken and those the evaluated policy
    would take."""

    def solve(self, rows: Rows) -> Floats:
        """What `fit` needs of the steps that the mask `rows`, (S,), marks: once for all targets."""
        ...

    def fit(self, solved: Floats, targets: Floats) -> Floats:
        """The coefficients that fit targets, (S,), which are 0 at steps that are not learnt from; `solved` is what
        `solve` gave for those that are."""
        ...

    def logged(self, coefficients: Floats, rows: Rows) -> Floats:
        """The values of the logged actions at the steps that the mask `rows`, (S,), marks."""
        ...

    def candidates(self, coefficients: Floats) -> tuple[Floats, Floats]:
        """Values of M actions of the evaluated policy at each step, (S, M), and their probabilities, (S, M)."""
        ...


@dataclass(frozen=True)
class Values:
    """What a model expects at each step, (S,), of all that is still to come: `q` after the logged action, `v` on
    average over what the evaluated policy does."""

    q: Floats  # after the logged action
    v: Floats  # on average over the evaluated policy's


def value(logged: LoggedEpisodes, model: Regression, low: float, high: float) -> float:
    """The mean return that the model, learnt from all episodes, expects where they began.

    A step earns `low` to `high`: what is expected of k steps is kept within k times these.
    """
    everything = np.ones(len(logged.lengths), np.bool_)
    return float(fitted(logged, model, everything, low, high).v[logged.step == 0].mean())


def forward(logged: LoggedEpisodes, model: Regression, low: float, high: float) -> Values:
    """Values of all steps, (S,), by models that are learnt from the episodes before; 0 for the first ones, about an
    eighth, which have none.

    So what a model expects of an episode does not depend on what came of it, as doubly robust estimates need. `low` and
    `high` are what a step can earn.
    """
    num_episodes = len(logged.lengths)
    episode = np.repeat(np.arange(num_episodes), logged.lengths)
    found = Values(np.zeros(len(logged.reward)), np.zeros(len(logged.reward)))
    edges = [*(int(share * num_episodes) for share in _FIRST_BLOCKS), num_episodes]
    for first, end in zip(edges, edges[1:], strict=False):
        if 0 < first < end:
            expected = fitted(logged, model, np.arange(num_episodes) < first, low, high)
            rows = (episode >= first) & (episode < end)
            found.q[rows], found.v[rows] = expected.q[rows], expected.v[rows]
    return found


def fitted(logged: LoggedEpisodes, model: Regression, episodes: Rows, low: float, high: float) -> Values:
    """Values of all steps, (S,), learnt from the episodes that the mask `episodes`, (N,), marks.

    What follows a truncated step is not in the log, so it teaches its reward only; so does every step that reached the
    greatest length, or those that terminated there would be taken for all of them. `low` and `high` are what a step can
    earn.
    """
    horizon, last = int(logged.lengths.max()), np.cumsum(logged.lengths) - 1
    of_reward = np.repeat(episodes, logged.lengths)
    of_both = of_reward & (logged.step < horizon - 1)
    of_both[last[~logged.terminated]] = False
    learnt = [(rows, model.solve(rows)) for rows in (of_reward, of_both)]
    to_go = horizon - logged.step
    v = np.zeros(len(logged.reward))
    found = Values(np.zeros_like(v), np.zeros_like(v))
    for k in range(1, horizon + 1):
        following = np.append(v[1:], 0.0)
        following[last] = 0.0
        rows, solved = learnt[min(k, 2) - 1]
        coefficients = model.fit(solved, np.where(rows, logged.reward + following, 0.0))
        values, probabilities = model.candidates(coefficients)
        v = (np.clip(values, k * low, k * high) * probabilities).sum(axis=1)
        now = to_go == k
        found.q[now], found.v[now] = np.clip(model.logged(coefficients, now), k * low, k * high), v[now]
    return found


def regression(logged: LoggedEpisodes, challenger: ServedPolicy, config: OffPolicyConfig) -> Regression:
    """A model to learn from a log, of features of the observations and actions of its steps; nothing is learnt yet.

    For choices it has coefficients for each of them, for continuous actions one set for observation and action
    together. The evaluated policy, `challenger`, is asked what it would do after each observation: by its own choice,
    or sampled, as `config.acting` says.

    Raises:
        CannotEstimate: when the policy is recurrent, observes something else, has no answer or too many combinations of
            choices.
    """
    rng, greedy = np.random.default_rng(_SEED), config.acting == "greedy"
    observation = logged.observation.reshape(len(logged.observation), -1).astype(np.float64)
    if challenger.chooses:
        probabilities = choice_probabilities(challenger, logged.observation, greedy)
        return _PerChoice(
            _Fourier(observation, rng)(observation), choice_index(challenger, logged.action), probabilities
        )
    actions = continuous_actions(challenger, logged.observation, greedy, _NUM_SAMPLES, rng)  # (S, M, D)
    both = np.hstack([observation, logged.action.reshape(len(observation), -1)])
    features = _Fourier(both, rng)
    taken = [features(np.hstack([observation, actions[:, number]])) for number in range(actions.shape[1])]
    return _Together(features(both), np.stack(taken, axis=1))


class _Fourier:
    """1, the inputs in units of their spread, and cosines of random projections of them."""

    def __init__(self, inputs: Floats, rng: np.random.Generator) -> None:
        self._mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
        self._spread = np.where(spread > 0.0, spread, 1.0)
        self._frequencies = rng.standard_normal((inputs.shape[1], _NUM_FOURIER)) / np.sqrt(inputs.shape[1])
        self._phases = rng.uniform(0.0, 2.0 * np.pi, _NUM_FOURIER)

    def __call__(self, inputs: Floats) -> Floats:
        scaled = (inputs - self._mean) / self._spread
        waves = np.cos(scaled @ self._frequencies + self._phases) * np.sqrt(2.0 / _NUM_FOURIER)
        return np.hstack([np.ones((len(inputs), 1)), scaled, waves])


@dataclass(frozen=True)
class _PerChoice:
    features: Floats  # (S, F)
    index: NDArray[np.int64]  # (S,), the logged choice
    probabilities: Floats  # (S, A), of the evaluated policy

    def solve(self, rows: Rows) -> Floats:
        taken = (self.features[rows & (self.index == choice)] for choice in range(self.probabilities.shape[1]))
        return np.stack([_inverse(features) for features in taken])

    def fit(self, solved: Floats, targets: Floats) -> Floats:
        of_choice = np.where(self.index == np.arange(len(solved))[:, None], targets, 0.0)  # (A, S)
        return np.asarray(np.einsum("afg,ag->af", solved, of_choice @ self.features))

    def logged(self, coefficients: Floats, rows: Rows) -> Floats:
        return np.asarray(np.einsum("sf,sf->s", self.features[rows], coefficients[self.index[rows]]))

    def candidates(self, coefficients: Floats) -> tuple[Floats, Floats]:
        return self.features @ coefficients.T, self.probabilities


@dataclass(frozen=True)
class _Together:
    features: Floats  # (S, F), of observation and logged action
    taken: Floats  # (S, M, F), of observation and actions of the evaluated policy

    def solve(self, rows: Rows) -> Floats:
        return _inverse(self.features[rows])

    def fit(self, solved: Floats, targets: Floats) -> Floats:
        return np.asarray(solved @ (self.features.T @ targets))

    def logged(self, coefficients: Floats, rows: Rows) -> Floats:
        return np.asarray(self.features[rows] @ coefficients)

    def candidates(self, coefficients: Floats) -> tuple[Floats, Floats]:
        values = self.taken @ coefficients
        return values, np.full(values.shape, 1.0 / values.shape[1])


def _inverse(features: Floats) -> Floats:
    """Of the regularised second moments, (F, F); the constant is hardly held back."""
    held_back = np.full(features.shape[1], _RIDGE)
    held_back[0] = 1e-6
    return np.asarray(np.linalg.inv(features.T @ features + np.diag(held_back)))

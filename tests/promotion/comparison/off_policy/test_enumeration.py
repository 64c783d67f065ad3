"""Estimators against the exact enumeration of a tiny world: every course an episode can take, with its probability.

Each estimator's terms have exactly the challenger's value as their mean, under every way to explore.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from loomrl.promotion.comparison.off_policy import estimators
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import read_logged
from loomrl.promotion.comparison.off_policy.ratios import importance_ratios
from loomrl.promotion.comparison.window import WindowEpisode
from tests.support.simulated_logs import MOVES_ON, STAYS, Chain, episode, greedy, softmax

WORLD = Chain()
Step = tuple[list[float], int, float, float]
Behaviour = Callable[[int, int], np.ndarray]  # of step and place: the probabilities of both actions


def share(step: int, place: int) -> np.ndarray:
    """Nobody asks; of the server's decisions a third is drawn, by epsilon 0.8."""
    own, drawn = (greedy(_observed(place), MOVES_ON, epsilon)[0] for epsilon in (0.0, 0.8))
    return np.asarray(2 / 3 * own + 1 / 3 * drawn)


def both(step: int, place: int) -> np.ndarray:
    """The agent asks in its first decision, and in the others where it is in the second place."""
    return greedy(_observed(place), MOVES_ON, 0.8)[0] if step == 0 or place == 1 else share(step, place)


def warm(step: int, place: int) -> np.ndarray:
    """Asked for throughout: by softmax at a temperature of 2."""
    return np.asarray(softmax(_observed(place) @ MOVES_ON / 2.0)[0])


def own(step: int, place: int) -> np.ndarray:
    """Asked for throughout: the champion's own distribution."""
    return np.asarray(softmax(_observed(place).astype(np.float64) @ MOVES_ON)[0])


def _observed(place: int) -> np.ndarray:
    return np.array([WORLD.observation(place)], np.float32)


def courses(
    behaviour: Behaviour, steps: list[Step], place: int, chance: float
) -> Iterator[tuple[WindowEpisode, float]]:
    """Every episode that can come of these steps, and how likely it is."""
    if len(steps) == WORLD.num_steps:
        yield episode(steps, terminated=False), chance
        return
    for action, given in enumerate(behaviour(len(steps), place)):
        for there, likely in WORLD._outcomes(place, action):
            so_far = [*steps, (WORLD.observation(place), action, float(given), WORLD._reward(there))]
            probability = chance * float(given) * likely
            if there == 1:
                yield episode(so_far), probability * WORLD.ends
                probability *= 1.0 - WORLD.ends
            yield from courses(behaviour, so_far, there, probability)


@pytest.mark.parametrize(
    ("behaviour", "acting"), [(share, "greedy"), (both, "greedy"), (warm, "greedy"), (own, "greedy"), (own, "sampled")]
)
def test_terms_have_the_challengers_value_as_their_mean(linear: Any, behaviour: Behaviour, acting: Any) -> None:
    found = list(courses(behaviour, [], 0, 1.0))
    chances = np.array([chance for _, chance in found])
    assert chances.sum() == pytest.approx(1.0)
    champion, challenger = linear(MOVES_ON, "1"), linear(STAYS, "2")
    config = OffPolicyConfig(acting=acting, min_effective_sample_size=1.0)
    logged, *_ = read_logged([one for one, _ in found], "1", config)
    cut, ratios = importance_ratios(logged, champion, challenger, config)
    assert cut.lengths.tolist() == logged.lengths.tolist()

    act = greedy if acting == "greedy" else (lambda obs, weights: softmax((obs @ weights).astype(np.float64)))
    rewards = logged.padded(logged.reward, 0.0)
    for weights_of, ratio in ((STAYS, ratios.challenger), (MOVES_ON, ratios.champion)):
        truth = WORLD.value(partial(act, weights=weights_of))
        weights = estimators.cumulative(logged.padded(ratio, 1.0))
        if acting == "sampled" and weights_of is MOVES_ON:
            assert np.all(ratio == 1.0), "what was sampled is what the log shows"
        assert chances @ weights[:, -1] == pytest.approx(1.0)
        assert chances @ estimators.importance_terms(weights, rewards) == pytest.approx(truth)
        assert chances @ estimators.per_decision_terms(weights, rewards) == pytest.approx(truth)
        q, v = _any_model(logged, partial(act, weights=weights_of))
        assert chances @ estimators.doubly_robust_terms(weights, rewards, q, v) == pytest.approx(truth)


def _any_model(logged: Any, policy: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A model that is as wrong as can be: numbers at random for each step, place and action."""
    table = np.random.default_rng(4).normal(size=(WORLD.num_steps, 2, 2))
    place = logged.observation[:, 0].astype(int)
    q = table[logged.step, place, logged.action]
    v = (table[logged.step, place] * policy(logged.observation.astype(np.float32))).sum(axis=1)
    return logged.padded(q, 0.0), logged.padded(v, 0.0)

"""Which disagreement is followed: with known chances, so that estimates are unbiased whatever the scores are."""

import numpy as np
import pytest

from loomrl.shadow.sampling import Rarity, probabilities


def test_rare_states_and_high_stakes_come_first_and_every_one_may_come() -> None:
    chances = probabilities(np.arange(100), np.arange(100))
    assert chances.sum() == pytest.approx(1.0)
    assert chances.min() >= 0.5 / 100
    assert chances[-1] > 4 * chances[0]
    np.testing.assert_allclose(probabilities([1.0, 1.0], [3.0, 3.0]), [0.5, 0.5])


@pytest.mark.parametrize("related", [True, False])
def test_the_weighted_draw_is_an_unbiased_mean(related: bool) -> None:
    rng = np.random.default_rng(0)
    stakes = rng.exponential(1.0, 50)
    outcomes = stakes**2 if related else rng.normal(size=50)
    chances = probabilities(stakes, rng.random(50))
    drawn = rng.choice(50, size=40_000, p=chances)
    estimates = outcomes[drawn] / (chances[drawn] * 50)
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - outcomes.mean()) < 4 * error
    assert np.isclose((chances * outcomes / (chances * 50)).sum(), outcomes.mean())


def test_rarity_is_distance_in_deviations() -> None:
    rarity = Rarity(np.array([[0.0, 5.0], [2.0, 5.0]]))
    np.testing.assert_allclose(rarity(np.array([[1.0, 5.0], [3.0, 5.0]])), [0.0, 2.0])

"""Differences are found however often one looks, and false ones seldom."""

from collections.abc import Callable

import numpy as np
import pytest

from loomrl.comparison.anytime import bounds, pair

STAKES = 0.9 / 2.0 ** np.arange(12)
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
STREAMS: dict[str, Draw] = {
    "half succeed": lambda rng, size: (rng.random(size) < 0.5).astype(float),
    "few fail": lambda rng, size: (rng.random(size) < 0.05).astype(float),
    "narrow": lambda rng, size: rng.beta(8, 2, size),
    "mostly the most": lambda rng, size: np.where(rng.random(size) < 0.8, 1.0, rng.random(size)),
}


def evidence(differences: np.ndarray) -> np.ndarray:
    """Against both signs of the mean of differences (R, P) in [-1, 1], after each of them: a second implementation."""
    found = []
    for sign in (1.0, -1.0):
        fortunes = np.cumsum(np.log1p(sign * differences[:, :, None] * STAKES), axis=1)  # (R, P, 12)
        found.append(np.logaddexp.reduce(fortunes - np.log(len(STAKES)), axis=2))
    return np.exp(np.maximum(*found))


@pytest.mark.parametrize("stream", STREAMS)
def test_two_equal_versions_are_hardly_ever_called_different(stream: str) -> None:
    rng = np.random.default_rng(10)
    draw = STREAMS[stream]
    differences = draw(rng, (1_000, 400)) - draw(rng, (1_000, 400))
    assert np.mean((evidence(differences) >= 2 / 0.05).any(axis=1)) <= 0.05


def test_bounds_exclude_what_the_evidence_excludes() -> None:
    rng = np.random.default_rng(11)
    differences = (rng.random((20, 300)) < 0.55).astype(float) - (rng.random((20, 300)) < 0.35)
    found = evidence(differences) >= 2 / 0.05
    for row, looks in zip(differences, found, strict=True):
        for number in (10, 60, 120, 300):
            low, high = bounds(row[:number], 1.0, 0.95)
            assert (low > 0.0 or high < 0.0) == looks[number - 1]
    assert 0.1 < found.mean() < 0.9


@pytest.mark.parametrize(("effect", "most"), [(0.2, 160), (0.1, 600), (0.05, 2_600)])
def test_how_many_episodes_a_difference_takes(effect: float, most: int) -> None:
    """Of 200 streams of successes, 50 % against 50 % + effect; docs/comparing.md states the medians."""
    rng = np.random.default_rng(12)
    shape = (200, most * 2)
    differences = (rng.random(shape) < 0.5 + effect).astype(float) - (rng.random(shape) < 0.5)
    found = evidence(differences) >= 2 / 0.05
    first = np.where(found.any(axis=1), found.argmax(axis=1) + 1, np.inf)
    assert most / 2 < np.median(first) <= most


def test_bounds_lie_within_what_values_can_differ_by_and_close_in() -> None:
    assert bounds(np.zeros(0), 500.0, 0.95) == (-500.0, 500.0)
    narrow = [bounds(np.tile([10.0, 30.0], number), 500.0, 0.95) for number in (10, 100, 1_000)]
    assert narrow[0][0] < narrow[1][0] < narrow[2][0] < 20.0 < narrow[2][1] < narrow[1][1] < narrow[0][1]


def test_episodes_stand_beside_each_other_in_their_order() -> None:
    champion, challenger = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([10.0, 20.0, 30.0])
    assert pair(champion, challenger, 1).tolist() == [9.0, 18.0, 27.0]
    assert pair(champion, challenger, 2).tolist() == [8.5, 16.5]
    assert pair(champion[:0], challenger, 1).tolist() == []

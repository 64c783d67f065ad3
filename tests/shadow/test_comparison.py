"""Distances of continuous actions, equality with the artifact, chance."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.serving.policy.distance import action_distance
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.comparison import compare
from loomrl.shadow.pairs import Pairs
from tests.support.policies import OBSERVATIONS, continuous_folder, discrete_folder


def pairs_of(observation: np.ndarray, acted: np.ndarray, mirrored: np.ndarray) -> Pairs:
    count = len(acted)
    zeros = np.zeros(count)
    return Pairs(observation, acted, mirrored, zeros, zeros, np.arange(count) % 40, zeros, zeros, 0)


def test_distance_is_in_half_ranges(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path))
    first, second = np.array([[0.0, 0.0], [1.0, -1.0]]), np.array([[0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(action_distance(first, second, policy), [0.0, 1.0])


def test_distance_of_discrete_actions_counts_differences(tmp_path: Path) -> None:
    policy = ServedPolicy.load(discrete_folder(tmp_path))
    np.testing.assert_array_equal(action_distance(np.array([0, 1, 1]), np.array([0, 1, 0]), policy), [0, 0, 1])


@pytest.mark.parametrize("make", [discrete_folder, continuous_folder])
def test_one_changed_bit_in_what_was_served_is_found(tmp_path: Path, make) -> None:
    policy = ServedPolicy.load(make(tmp_path))
    observations = np.concatenate([OBSERVATIONS] * 4)
    served = policy(observations)
    assert compare(pairs_of(observations, served, served), policy, [], 0.95, False).bitwise_equal
    changed = served.copy()
    changed[3] = 1 - changed[3] if policy.chooses else np.nextafter(changed[3], np.float32(2))
    comparison = compare(pairs_of(observations, changed, changed), policy, [], 0.95, False)
    assert (comparison.bitwise_equal, comparison.num_unequal) == (False, 1)


def test_agreement_by_chance_of_discrete_actions(tmp_path: Path) -> None:
    policy = ServedPolicy.load(discrete_folder(tmp_path))
    acted, mirrored = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    comparison = compare(pairs_of(OBSERVATIONS[:4], acted, mirrored), policy, [], 0.95, True)
    assert comparison.chance_agreement == pytest.approx(0.75 * 0.5 + 0.25 * 0.5)


def test_contrary_continuous_actions_are_less_alike_than_by_chance(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path))
    acted = np.random.default_rng(0).choice([-1.0, 1.0], size=(400, 2))
    comparison = compare(pairs_of(np.zeros((400, 4), np.float32), acted, -acted), policy, [], 0.95, True)
    assert comparison.agreement is not None
    assert comparison.agreement.high < 0.1 < comparison.chance_agreement


def test_no_decisions_give_no_numbers(tmp_path: Path) -> None:
    policy = ServedPolicy.load(discrete_folder(tmp_path))
    empty = np.zeros(0)
    comparison = compare(pairs_of(np.zeros((0, 4), np.float32), empty, empty), policy, [], 0.95, True)
    assert (comparison.num_decisions, comparison.agreement, comparison.latency_seconds) == (0, None, {})
    alone = compare(pairs_of(np.zeros((0, 4), np.float32), empty, empty), policy, [], 0.95, False)
    assert alone.bitwise_equal is None

"""Distances of continuous actions, equality with the artifact, chance."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.safety.config import ConstraintConfig
from loomrl.serving.policy.distance import action_distance
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.comparison import compare
from loomrl.shadow.pairs import Pairs
from loomrl.statistics.clustered import clustered_mean, clustered_proportion, rate_over_units
from tests.support.policies import OBSERVATIONS, continuous_folder, discrete_folder

TORQUE = ConstraintConfig(name="gentle", quantity="action[0]", low=-0.9, high=0.9)


def pairs_of(
    observation: np.ndarray,
    acted: np.ndarray,
    mirrored: np.ndarray,
    episode: np.ndarray | None = None,
    agent: np.ndarray | None = None,
) -> Pairs:
    count = len(acted)
    zeros = np.zeros(count)
    episode = np.arange(count) % 40 if episode is None else episode
    return Pairs(observation, acted, mirrored, zeros, zeros, episode, zeros, zeros, 0, agent)


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


@pytest.mark.parametrize("num_violating", [0, 1])
def test_episodes_bound_the_rate_of_violations_however_many_steps_they_have(tmp_path: Path, num_violating: int) -> None:
    """One whole episode in 20 violates, or none is seen: 4,000 steps are no more than their 20 episodes."""
    policy = ServedPolicy.load(continuous_folder(tmp_path))
    episode = np.repeat(np.arange(20), 200)
    mirrored = np.where(episode[:, None] < num_violating, 1.0, 0.0) * np.ones(2)
    pairs = pairs_of(np.zeros((4_000, 4), np.float32), np.zeros((4_000, 2)), mirrored, episode)
    comparison = compare(pairs, policy, [TORQUE], 0.95, True)
    assert comparison.num_units == 20
    assert comparison.would_be_violations == rate_over_units(np.arange(20) < num_violating, 0.95)
    assert comparison.would_be_violations.high > 0.1


def test_agents_are_the_units_where_several_were_watched(tmp_path: Path) -> None:
    """Four agents of ten episodes each; one of them is contrary, and breaks the limit, in all of its episodes."""
    policy = ServedPolicy.load(continuous_folder(tmp_path))
    episode, agent = np.repeat(np.arange(40), 10), np.repeat(np.arange(4), 100)
    mirrored = np.where(agent[:, None] == 3, 1.0, 0.0) * np.ones(2)
    nothing = np.zeros((400, 2))
    comparison = compare(
        pairs_of(np.zeros((400, 4), np.float32), nothing, mirrored, episode, agent), policy, [TORQUE], 0.95, True
    )
    assert (comparison.num_episodes, comparison.num_units) == (40, 4)
    assert comparison.would_be_violations == rate_over_units([0, 0, 0, 1], 0.95)
    assert comparison.agreement == clustered_proportion(agent != 3, agent, 0.95)
    assert comparison.action_distance == clustered_mean(action_distance(nothing, mirrored, policy), agent, 0.95)


def test_the_episodes_of_a_single_agent_are_the_units(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path))
    nothing, episode = np.zeros((400, 2)), np.repeat(np.arange(40), 10)
    pairs = pairs_of(np.zeros((400, 4), np.float32), nothing, nothing, episode, np.zeros(400, np.int64))
    assert compare(pairs, policy, [TORQUE], 0.95, True).num_units == 40

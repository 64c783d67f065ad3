"""What a policy's graph says of logged actions is what the server's exploration recorded."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.finite.shield import Shield
from loomrl.promotion.comparison.off_policy import target
from loomrl.promotion.comparison.off_policy.log import CannotEstimate
from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import ServedPolicy
from tests.support.policies import continuous_folder
from tests.support.served import served

OBSERVATION = Box(-1.0, 1.0, (2,), np.float32)
CHOICES = [Discrete(3, start=2), MultiDiscrete([2, 3], start=[5, 0]), MultiBinary(2)]
VALVES = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def policy_for(space: gymnasium.Space[Any], squash: bool = False) -> ServedPolicy:
    generator = torch.Generator().manual_seed(2)
    network = ActorCriticPolicy.for_spaces(
        "ppo", OBSERVATION, space, (8,), "tanh", False, generator, squash_actions=squash
    )
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.mul_(30.0)
    return served(network)


def explored(policy: ServedPolicy, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, what was sampled for each, and the propensities that were recorded."""
    rng = np.random.default_rng(4)
    observations = rng.uniform(-1, 1, (number, *policy.shape)).astype(np.float32)
    answer = policy.answer(observations)
    samples = [explore(policy, answer, index, rng) for index in range(number)]
    return observations, np.array([one.action for one in samples]), np.array([one.propensity for one in samples])


@pytest.mark.parametrize("space", CHOICES, ids=lambda space: type(space).__name__)
def test_choices_have_the_probability_they_were_recorded_with(space: gymnasium.Space[Any]) -> None:
    policy = policy_for(space)
    observations, actions, propensities = explored(policy, 200)
    probabilities = target.choice_probabilities(policy, observations, greedy=False)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(200))
    assert probabilities[np.arange(200), target.choice_index(policy, actions)] == pytest.approx(propensities)


@pytest.mark.parametrize("space", CHOICES, ids=lambda space: type(space).__name__)
def test_its_own_choice_is_certain(space: gymnasium.Space[Any]) -> None:
    policy = policy_for(space)
    observations, *_ = explored(policy, 50)
    probabilities = target.choice_probabilities(policy, observations, greedy=True)
    chosen = target.choice_index(policy, policy(observations))
    assert probabilities.tolist() == np.eye(probabilities.shape[1])[chosen].tolist()


def test_behind_a_shield_an_action_is_as_probable_as_all_choices_that_become_it() -> None:
    policy = policy_for(Discrete(3))
    states = np.array([[0.3, -0.8], [0.5, 0.5]], np.float32)
    allowed = np.array([[True, False, True], [False, True, False]])
    policy.shield = Shield(states, allowed, np.zeros((2, 3)))
    answer, rng = policy.answer(states), np.random.default_rng(5)
    probabilities = target.choice_probabilities(policy, states, greedy=False)
    for row in (0, 1):
        for sample in (explore(policy, answer, row, rng) for _ in range(20)):
            assert probabilities[row, int(sample.action)] == pytest.approx(sample.propensity)
    assert probabilities[1].tolist() == pytest.approx([0.0, 1.0, 0.0])


@pytest.mark.parametrize("squash", [False, True])
def test_densities_within_the_bounds_are_those_recorded(squash: bool) -> None:
    policy = policy_for(VALVES, squash)
    observations, actions, propensities = explored(policy, 300)
    densities = target.log_densities(policy, observations, actions)
    inside = ~target.at_bounds(policy, actions).any(axis=(0, 2))
    if squash:  # the slope of tanh is left out
        shares = 2 * (actions - VALVES.low) / (VALVES.high - VALVES.low) - 1
        inside &= np.all(np.abs(shares) < 0.999, axis=1)
        half = (VALVES.high - VALVES.low) / 2
        densities -= np.log(half * (1 - np.clip(shares, -0.999, 0.999) ** 2)).sum(axis=1)
    assert inside.sum() > 30
    assert np.exp(densities[inside]) == pytest.approx(propensities[inside], rel=1e-3)


def test_what_is_clipped_to_a_bound_has_the_probability_of_all_beyond_it(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path), "1")  # mean 0.5 obs[:2], spread exp(-1)
    observations = np.zeros((1, 4), np.float32)
    on_both = np.exp(target.log_densities(policy, observations, np.array([[1.0, -1.0]])))[0]
    samples = np.random.default_rng(6).normal(0.0, np.exp(-1.0), (400_000, 2))
    beyond = np.mean((samples[:, 0] >= 1.0) & (samples[:, 1] <= -1.0))
    assert on_both == pytest.approx(0.00328**2, rel=0.01)  # Phi(-e) = 0.00328
    assert beyond == pytest.approx(on_both, abs=5e-5)


@pytest.mark.parametrize("squash", [False, True])
def test_actions_are_drawn_as_the_server_draws_them(squash: bool) -> None:
    policy = policy_for(VALVES, squash)
    observation = np.array([[0.3, -0.8]], np.float32)
    rng = np.random.default_rng(7)
    drawn = target.continuous_actions(policy, observation, False, 4_000, rng)[0]
    answer = policy.answer(observation)
    recorded = np.array([explore(policy, answer, 0, rng).action for _ in range(4_000)])
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share, axis=0) == pytest.approx(np.quantile(recorded, share, axis=0), abs=0.4)
    own = target.continuous_actions(policy, observation, True, 1, rng)
    assert own[0, 0] == pytest.approx(answer.action[0])


def test_what_cannot_be_answered_is_named() -> None:
    many = policy_for(MultiBinary(11))
    with pytest.raises(CannotEstimate, match="2048 combinations of choices are more than 1,024"):
        target.choice_probabilities(many, np.zeros((1, 2), np.float32), greedy=True)
    with pytest.raises(CannotEstimate, match=r"version 1 observes \[2\], the log has \[3\]"):
        target.choice_probabilities(policy_for(Discrete(2)), np.zeros((1, 3), np.float32), greedy=True)
    broken = policy_for(Discrete(2))
    with pytest.raises(CannotEstimate, match="no answer to what the log observed: .* is not finite"):
        target.choice_probabilities(broken, np.full((1, 2), np.nan, np.float32), greedy=True)

"""Several choices at once, switches and squashed actions: explored, overridden and compared."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.serving.decisions.actions import check_action
from loomrl.serving.policy.distance import action_distance
from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.comparison import compare
from loomrl.shadow.pairs import Pairs
from loomrl.system.http.problems import Problem
from tests.support.served import served

OBSERVATION = Box(-1.0, 1.0, (2,), np.float32)
DIALS, SWITCHES = MultiDiscrete([2, 3], start=[5, 0]), MultiBinary(2)
VALVES = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def policy_for(space: gymnasium.Space[Any], squash: bool = False) -> tuple[ServedPolicy, ActorCriticPolicy]:
    """Large weights, so that choices have unequal probabilities."""
    generator = torch.Generator().manual_seed(2)
    network = ActorCriticPolicy.for_spaces(
        "ppo", OBSERVATION, space, (8,), "tanh", False, generator, squash_actions=squash
    )
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.mul_(60.0)
    return served(network), network


@pytest.mark.parametrize(("space", "squash"), [(DIALS, False), (SWITCHES, False), (VALVES, True)])
def test_propensities_are_the_distributions(space: gymnasium.Space[Any], squash: bool) -> None:
    policy, network = policy_for(space, squash)
    obs = np.array([[0.3, -0.8]], np.float32)
    answer, rng = policy.answer(obs), np.random.default_rng(1)
    samples = [explore(policy, answer, 0, rng) for _ in range(4_000)]
    drawn = [(sample.action, sample.propensity) for sample in samples]
    assert all(space.contains(action.astype(space.dtype)) for action, _ in drawn)
    parameters = tuple(torch.from_numpy(answer.outputs[name]) for name in network.distribution.names)
    with torch.no_grad():
        for action, propensity in drawn[:50]:
            learnt = torch.from_numpy(action[None].astype(np.float64))
            if squash:  # back to the Gaussian's sample
                learnt = torch.atanh((learnt - torch.tensor([-2.0, 0.0])) / torch.tensor([2.0, 5.0]) - 1.0)
            log_prob, _ = network.distribution.log_prob_and_entropy(
                parameters, network.distribution.from_actions(learnt)
            )
            assert math.log(propensity) == pytest.approx(log_prob.item(), abs=1e-3)
    if not squash:  # how often each action is drawn is its propensity
        for action in {tuple(action.tolist()) for action, _ in drawn}:
            found = [propensity for each, propensity in drawn if tuple(each.tolist()) == action]
            error = math.sqrt(found[0] * (1 - found[0]) / len(drawn))
            assert len(found) / len(drawn) == pytest.approx(found[0], abs=5 * error + 1e-9)


def test_a_person_names_members_only() -> None:
    dials, switches = policy_for(DIALS)[0], policy_for(SWITCHES)[0]
    assert check_action([6, 2], dials).tolist() == [6, 2]
    assert check_action([6, 2], dials).dtype == np.int64
    assert check_action([1, 0], switches).dtype == np.int8
    for value, message in [([4, 0], r"not within \[5, 0\] to \[6, 2\]"), ([5, 3], "not within"), ([5], "2.* whole"),
                           ([5.5, 1], "whole numbers"), ([[5], [1, 2]], "ragged"), ([5.5, 1.5], "whole"),
                           ([True, 1], "booleans"), (["5", 1], "text")]:  # fmt: skip
        with pytest.raises(Problem, match=message):
            check_action(value, dials)
    with pytest.raises(Problem, match="not within 0 to"):
        check_action([2, 0], switches)


def test_all_components_must_agree() -> None:
    policy, _ = policy_for(DIALS)
    acted, mirrored = np.array([[5, 0], [5, 1], [6, 1], [5, 0]]), np.array([[5, 0], [5, 2], [5, 1], [5, 0]])
    np.testing.assert_array_equal(action_distance(acted, mirrored, policy), [0, 1, 1, 0])
    zeros = np.zeros(4)
    pairs = Pairs(np.zeros((4, 2), np.float32), acted, mirrored, zeros, zeros, np.arange(4), zeros, zeros, 0)
    comparison = compare(pairs, policy, [], 0.95, True)
    assert comparison.agreement is not None
    assert comparison.agreement.estimate == 0.5
    assert comparison.chance_agreement == pytest.approx(0.5 * 0.5 + 0.25 * 0.25)  # [5, 0] and [5, 1] are in both

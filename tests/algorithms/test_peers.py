"""Meeting others changes nothing of the arithmetic: a learner that is to meet others, and has none, learns the same."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms import dqn, ppo, ppo_lagrangian, recurrent_ppo, sac
from loomrl.algorithms.peers import LayerWeights, LearnerGroup, Moments
from tests.support.trajectories import made_up

SPACES = {"discrete": Discrete(4), "box": Box(-0.5, 0.5, (2,), np.float32)}


class AllReducesGradients(LearnerGroup):
    all_reduces_gradients = True


class MeetsEvery(LearnerGroup):
    """Demands to be told after every `limit` steps, and no later."""

    def __init__(self, limit: int) -> None:
        self.limit, self.steps, self.meetings = limit, 0, 0

    @property
    def steps_until_synchronisation(self) -> float:  # type: ignore[override]
        return self.limit - self.steps

    def count_steps(self, num_steps: int) -> None:
        self.steps += num_steps
        assert self.steps <= self.limit
        if self.steps == self.limit:
            self.steps, self.meetings = 0, self.meetings + 1


def learnt(engine: str, space: str, peers: LearnerGroup) -> tuple[dict[str, Any], dict[str, float]]:
    config = ppo.Config(
        num_envs=4,
        rollout_length=64,
        batch_size=60,
        n_epochs=3,
        hidden_sizes=(16,),
        normalize_rewards=True,
        engine=engine,
    )
    observation = Box(-10.0, 10.0, (3,), np.float32)
    algorithm = ppo.build(config, observation, SPACES[space], seed=1, total_env_steps=512, peers=peers)
    rng = np.random.default_rng(0)
    metrics = [algorithm.update(made_up(algorithm, seed, 64), rng) for seed in range(2)]
    return algorithm.state_dict(), metrics[-1]


@pytest.mark.parametrize(
    "peers", [AllReducesGradients, partial(MeetsEvery, 4), partial(MeetsEvery, 7), partial(MeetsEvery, 99)]
)
@pytest.mark.parametrize(("engine", "space"), [("compiled", "box"), ("compiled", "discrete"), ("torch", "box")])
def test_meeting_nobody_changes_no_bit(engine: str, space: str, peers: Any) -> None:
    (state, metrics), (found, found_metrics) = (learnt(engine, space, one) for one in (LearnerGroup(), peers()))
    assert found_metrics == metrics
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


OTHERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "recurrent PPO": (recurrent_ppo, "box", {"memory_size": 4, "batch_size": 64}),
    "PPO with costs": (ppo_lagrangian, "discrete", {"batch_size": 60}),
    "compiled DQN": (dqn, "discrete", {"engine": "compiled", "dueling": True, "hidden_sizes": (16, 16)}),
    "DQN in torch": (dqn, "discrete", {"engine": "torch", "num_quantiles": 5, "prioritized": True}),
    "compiled SAC": (sac, "box", {"engine": "compiled", "learning_starts": 0, "batch_size": 32}),
    "SAC in torch": (sac, "box", {"engine": "torch", "learning_starts": 0, "batch_size": 32}),
    "SAC of indices": (sac, "discrete", {"normalize_observations": True, "learning_starts": 0, "batch_size": 32}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_algorithm_changes_a_bit_where_it_meets_nobody(name: str) -> None:
    plugin, space, values = OTHERS[name]
    config = plugin.Config.model_validate({"num_envs": 4, "rollout_length": 32, "hidden_sizes": (16,), **values})
    states = []
    for peers in (LearnerGroup(), AllReducesGradients()):
        observation, rng = Box(-10.0, 10.0, (3,), np.float32), np.random.default_rng(0)
        algorithm = plugin.build(config, observation, SPACES[space], seed=1, total_env_steps=512, peers=peers)
        trajectory = made_up(algorithm, 0, 32)
        algorithm.update(replace(trajectory, cost=trajectory.reward.clip(0.0)), rng)
        states.append(algorithm.state_dict())
    for key, value in states[0].items():
        np.testing.assert_array_equal(states[1][key], value, err_msg=key)


def test_steps_are_counted_over_updates() -> None:
    """Two updates of three epochs of five batches."""
    peers = MeetsEvery(7)
    learnt("compiled", "box", peers)
    assert (peers.meetings, peers.steps) == (4, 2)


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_others_are_told_of_all_matrices(engine: str) -> None:
    class Told(LearnerGroup):
        def register_parameters(self, parameters: Any, matrices: Any) -> None:
            self.parameters, self.matrices = np.asarray(parameters), [LayerWeights(*one) for one in matrices]

    peers = Told()
    learnt(engine, "box", peers)
    shapes = sorted(tuple(sorted((one.rows, one.columns))) for one in peers.matrices)
    assert shapes == [(1, 16), (2, 16), (3, 16), (3, 16)]
    ends = [one.start + one.rows * one.columns for one in peers.matrices]
    assert max(ends) <= len(peers.parameters)


def test_moments_of_rows() -> None:
    moments = Moments.of(np.array([[1.0, 10.0], [3.0, 10.0]], np.float32))
    assert (moments.mean.tolist(), moments.var.tolist(), moments.count) == ([2.0, 10.0], [1.0, 0.0], 2.0)

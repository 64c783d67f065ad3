"""The compiled learner against the torch one, whose gradients are autograd's: the same numbers within rounding."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms.dqn import learner as dqn
from loomrl.algorithms.replay.spec import Transitions

OBSERVATION, ACTION = Box(-np.inf, np.inf, (5,), np.float32), Discrete(3, start=2)
BATCH_SIZE = 13  # no multiple of a tile's rows
VARIANTS: list[dict[str, Any]] = [
    {"double": False, "activation": "relu"},
    {"double": True, "activation": "tanh"},
    {"double": True, "activation": "elu", "num_quantiles": 5},
    {"double": False, "activation": "relu", "dueling": True, "target_update_interval": 10, "tau": None},
    {"double": True, "activation": "tanh", "dueling": True, "num_quantiles": 5, "max_grad_norm": 0.1},
]


def make(engine: str, **values: Any) -> dqn.DQN:
    settings = {"hidden_sizes": (20, 24), "batch_size": BATCH_SIZE, "tau": 0.1, **values}
    return dqn.build(dqn.DQNConfig(engine=engine, **settings), OBSERVATION, ACTION, seed=1, total_env_steps=1000)


def batch(rng: np.random.Generator) -> Transitions:
    return Transitions(
        obs=rng.normal(size=(BATCH_SIZE, 5)).astype(np.float32),
        action=rng.integers(2, 5, BATCH_SIZE),
        reward=2.0 * rng.normal(size=BATCH_SIZE).astype(np.float32),
        next_obs=rng.normal(size=(BATCH_SIZE, 5)).astype(np.float32),
        terminated=rng.random(BATCH_SIZE) < 0.3,
        discount=rng.random(BATCH_SIZE).astype(np.float32),
        index=np.arange(BATCH_SIZE),
        weight=rng.random(BATCH_SIZE).astype(np.float32),
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_learners_take_the_same_steps(variant: dict[str, Any]) -> None:
    torch_one, compiled_one = make("torch", **variant), make("compiled", **variant)
    assert (torch_one.engine, compiled_one.engine) == ("torch", "compiled")
    rng = np.random.default_rng(0)
    for step in range(20):
        drawn, rate = batch(rng), 1e-3 / (1 + step)
        expected, expected_errors = torch_one.learner.step(drawn, rate)
        found, found_errors = compiled_one.learner.step(drawn, rate)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert found_errors == pytest.approx(expected_errors, rel=1e-4, abs=1e-4)
        if step == 10:
            torch_one.learner.copy_target()
            compiled_one.learner.copy_target()
    learnt, reference = compiled_one.policy.arrays(), torch_one.policy.arrays()
    assert learnt.keys() == reference.keys()
    for name, value in reference.items():
        assert learnt[name] == pytest.approx(value, abs=2e-6), name
    obs = rng.normal(size=(50, 5)).astype(np.float32)
    assert np.array_equal(compiled_one.learner.greedy(obs), torch_one.learner.greedy(obs))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rollouts_network_gives_the_policys_values(variant: dict[str, Any]) -> None:
    """One row for each action, whatever the head: quantiles averaged, advantages centred."""
    from loomrl.algorithms.compiled.dense import forward

    policy = make("compiled", **variant).policy
    network = policy.compiled
    assert network is not None
    obs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    out = np.empty((7, 3), np.float32)
    forward(network.parameters, network.actor.table, network.activation, obs, network.actor.hidden(7), out)
    expected = policy.forward(torch.from_numpy(obs))["logits"].detach().numpy()
    assert out == pytest.approx(expected, abs=1e-5)


def test_unused_units_stay_zero_and_streams_stay_apart() -> None:
    """24 units are padded to 32, and a duelling network's crossings are weights that must never be learnt."""
    algorithm = make("compiled", dueling=True)
    rng = np.random.default_rng(0)
    for _ in range(5):
        algorithm.learner.step(batch(rng), 1e-3)
    state, policy = algorithm.learner.state_dict(), algorithm.policy
    learnt = sum(parameter.numel() for parameter in policy.parameters())
    for name in ("parameters", "target", "first", "second"):
        assert 0 < np.count_nonzero(state[name]) <= learnt, name

"""DQN's targets, losses and heads against numbers worked out by hand and against plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from loomrl.algorithms.dqn import learner as dqn
from loomrl.algorithms.dqn import losses
from loomrl.algorithms.dqn.policy import ActionValuePolicy
from loomrl.algorithms.dqn.torch_engine import TorchDQNEngine
from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.errors import ConfigError
from loomrl.types import Trajectory

OBSERVATION, ACTION = Box(-np.inf, np.inf, (2,), np.float32), Discrete(3)


def policy(dueling: bool = False, num_quantiles: int = 1) -> ActionValuePolicy:
    return ActionValuePolicy.for_spaces(
        "dqn",
        OBSERVATION,
        ACTION,
        hidden_sizes=(4, 4),
        activation="tanh",
        dueling=dueling,
        num_quantiles=num_quantiles,
        generator=torch.Generator().manual_seed(3),
    )


def test_a_plain_target_takes_the_targets_own_best_action_and_a_double_one_the_online_networks() -> None:
    target = torch.tensor([[[1.0], [5.0], [2.0]]])
    online = torch.tensor([[[0.0], [1.0], [9.0]]])
    assert losses.successor_quantiles(target, target).tolist() == [[5.0]]
    assert losses.successor_quantiles(target, online).tolist() == [[2.0]]


def test_of_quantiles_the_mean_decides() -> None:
    target = torch.tensor([[[0.0, 9.0], [6.0, 4.0]]])  # means 4.5 and 5
    assert losses.successor_quantiles(target, target).tolist() == [[6.0, 4.0]]


def test_only_a_terminal_state_ends_the_return() -> None:
    reward, discount = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.25])
    targets = losses.td_targets(reward, discount, torch.tensor([False, True]), torch.tensor([[8.0], [8.0]]))
    assert targets.tolist() == [[5.0], [1.0]]


def test_n_step_targets_from_the_replay_by_hand() -> None:
    """Rewards 1, 2, 3, 4 at gamma 1/2 over 3 steps; the episode is cut by its time limit, or ends, after the third."""
    for ended, expected in (("truncated", 1 + 1 + 0.75 + 0.125 * 10), ("terminated", 1 + 1 + 0.75)):
        flags = {name: np.zeros((4, 1), np.bool_) for name in ("terminated", "truncated")}
        flags[ended][2] = True
        obs = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
        spec = ReplaySpec(
            capacity=200, num_envs=1, obs_shape=(2,), obs_dtype=np.float32, action_shape=(), action_dtype=np.int64,
            n_step=3, gamma=0.5,
        )  # fmt: skip
        buffer = ReplayBuffer(spec)
        next_obs = obs + 2.0  # each step's successor is the next step's observation ...
        next_obs[2] += 90.0  # ... but where the episode ends
        buffer.add(
            Trajectory(obs, np.zeros((4, 1), np.int64), np.arange(1.0, 5.0)[:, None], **flags, next_obs=next_obs)
        )
        batch = buffer.sample(200, np.random.default_rng(0))
        (first,) = np.unique(batch.index[batch.obs[:, 0] == 0.0])
        row = int(np.flatnonzero(batch.index == first)[0])
        assert batch.next_obs[row].tolist() == [96.0, 97.0]  # the true successor of the third step
        successor = torch.full((200, 1), 10.0)
        reward, discount = torch.from_numpy(batch.reward), torch.from_numpy(batch.discount)
        targets = losses.td_targets(reward, discount, torch.from_numpy(batch.terminated), successor)
        assert float(targets[row, 0]) == expected


def test_huber_loss_is_square_within_one_and_linear_beyond() -> None:
    found = losses.huber_losses(torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([[0.5], [-3.0], [3.0]]))
    assert found.tolist() == [0.125, 2.5, 0.0]


def test_quantile_huber_loss_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    quantiles, targets = rng.normal(size=(6, 5)) * 2, rng.normal(size=(6, 5)) * 2
    expected = []
    for theta, target in zip(quantiles, targets, strict=True):
        total = 0.0
        for i in range(5):
            tau = (2 * i + 1) / 10
            for j in range(5):
                error = target[j] - theta[i]
                huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                total += abs(tau - (1.0 if error < 0 else 0.0)) * huber / 5
        expected.append(total)
    found = losses.quantile_huber_losses(torch.from_numpy(quantiles).float(), torch.from_numpy(targets).float())
    assert found.numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_quantiles", [1, 3])
def test_a_duelling_head_centres_its_advantages(num_quantiles: int) -> None:
    made = policy(dueling=True, num_quantiles=num_quantiles)
    obs = torch.tensor([[0.3, -0.2], [1.0, 2.0]])
    hidden = made.encoder(made.features(obs))
    value = made.head.value(made.head.value_stream(hidden)).detach().numpy()
    advantage = made.head.advantage(made.head.advantage_stream(hidden)).detach().numpy().reshape(2, 3, num_quantiles)
    combined = made.quantiles(obs).detach().numpy()
    for row in range(2):
        for action in range(3):
            for part in range(num_quantiles):
                centred = advantage[row, action, part] - advantage[row, :, part].sum() / 3
                assert combined[row, action, part] == pytest.approx(value[row, part] + centred, abs=1e-6)


@pytest.mark.parametrize(("dueling", "num_quantiles"), [(False, 1), (True, 4)])
def test_the_policy_takes_the_action_of_highest_mean_value(dueling: bool, num_quantiles: int) -> None:
    made = policy(dueling, num_quantiles)
    obs = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    answer = made.forward(obs)
    means = made.quantiles(obs).mean(-1)
    assert torch.equal(answer["logits"], means)
    assert torch.equal(answer["action"], means.argmax(-1))
    assert torch.equal(answer["value"], means.max(-1).values)


class Table(nn.Module):
    """Values looked up by the first component of an observation."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def quantiles(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values[obs[:, 0].long()].unsqueeze(-1)


@pytest.mark.parametrize(("double", "expected"), [(False, [1 + 0.9 * 7, 2.0]), (True, [1 + 0.9 * 3, 2.0])])
def test_a_learner_asks_each_network_for_its_part(double: bool, expected: list[float]) -> None:
    learner: Any = TorchDQNEngine(dqn.DQNConfig(double=double, engine="torch"), policy())
    learner.policy, learner.target = Table([[1.0, 2.0], [4.0, 0.0]]), Table([[9.0, 9.0], [3.0, 7.0]])
    learner.policy.first_action = 0
    batch = Transitions(
        obs=np.array([[0.0], [1.0]], np.float32),
        action=np.array([1, 0]),
        reward=np.array([1.0, 2.0], np.float32),
        next_obs=np.array([[1.0], [1.0]], np.float32),
        terminated=np.array([False, True]),
        discount=np.array([0.9, 0.9], np.float32),
        index=np.arange(2),
        weight=np.ones(2, np.float32),
    )
    values, targets = learner.values_and_targets(batch)
    assert values[:, 0].tolist() == [2.0, 4.0]
    assert targets[:, 0].tolist() == pytest.approx(expected)
    assert not targets.requires_grad


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tau": 0.1, "target_update_interval": 10}, "tau"),
        ({"dueling": True, "hidden_sizes": (8,)}, "dueling"),
        ({"batch_size": 64, "replay_capacity": 32}, "batch_size"),
        ({"num_envs": 3, "replay_capacity": 100}, "use 99"),
        ({"epsilon_initial": 0.1, "epsilon_final": 0.5}, "epsilon_final"),
        ({"hidden_sizes": ()}, "hidden_sizes"),
    ],
)
def test_impossible_combinations_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dqn.DQNConfig(**values)


def test_spaces_and_engines_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"action space Box.*Discrete"):
        dqn.build(dqn.DQNConfig(), OBSERVATION, OBSERVATION, seed=1, total_env_steps=10)
    for config, observation in (
        (dqn.DQNConfig(engine="compiled", activation="silu"), OBSERVATION),
        (dqn.DQNConfig(engine="compiled"), Discrete(3)),
    ):
        with pytest.raises(ConfigError, match="compiled cannot learn"):
            dqn.choose_engine(config, observation, ACTION)
        fitting = config.model_copy(update={"engine": "auto"})
        assert dqn.choose_engine(fitting, observation, ACTION) == "torch"
    assert dqn.choose_engine(dqn.DQNConfig(), OBSERVATION, ACTION) == "compiled"
    assert dqn.choose_engine(dqn.DQNConfig(engine="torch"), OBSERVATION, ACTION) == "torch"

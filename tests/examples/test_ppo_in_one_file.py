"""The library's engines are held to PPO in one file: equal parameters and the same rollout give the same update."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.nn.utils import parameters_to_vector

from examples.ppo_in_one_file import ActorCritic, Config, Normalizer, Rollout, collect, make_optimizer, update
from loomrl.algorithms import ppo
from loomrl.environment.vector.device import best_device
from loomrl.types import Trajectory
from tests.support.trajectories import made_up

DEVICE = best_device()
PROGRAM = Path(__file__).parents[2] / "examples" / "ppo_in_one_file.py"
OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {"choices": Discrete(4), "numbers": Box(-0.5, 0.5, (2,), np.float32)}
CONFIG = Config(num_envs=4, rollout_length=80, batch_size=80, n_epochs=2, hidden_sizes=(16, 16), entropy_coef=0.01)
LAYERS = (  # of the oracle's networks, and of the library's policies
    ("actor.0", "actor.layers.0"), ("actor.2", "actor.layers.2"), ("actor.4", "head.logits"), ("actor.4", "head.mean"),
    ("critic.0", "critic.layers.0"), ("critic.2", "critic.layers.2"), ("critic.4", "value_head.value"),
)  # fmt: skip


def engine_of(name: str, space: gymnasium.Space[Any]) -> Any:
    values = {key: value for key, value in vars(CONFIG).items() if key != "learning_rate"}
    config = ppo.Config(**values, learning_rate=CONFIG.learning_rate, learning_rate_schedule="constant", engine=name)
    return ppo.build(config, OBSERVATION, space, seed=1, total_env_steps=10_000)


def parameters_of(algorithm: Any) -> dict[str, torch.Tensor]:
    """The parameters of a library's policy, under the oracle's names."""
    names = [(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in LAYERS for kind in ("weight", "bias")]
    names.append(("log_std", "head.log_std"))
    known = algorithm.policy.arrays()
    return {ours: torch.from_numpy(known[theirs].copy()) for ours, theirs in names if theirs in known}


def rollout_of(trajectory: Trajectory) -> Rollout:
    """The same, as the oracle takes it: of continuous actions the samples."""
    action = trajectory.extras.get("sample", trajectory.action)
    return Rollout(
        trajectory.obs, action, trajectory.reward, trajectory.terminated, trajectory.truncated, trajectory.next_obs
    )


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("engine", ["torch", "compiled", "device"])
def test_each_engine_ends_an_update_where_the_oracle_does(
    engine: str, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = engine_of(engine, SPACES[space])
    policy = ActorCritic(3, SPACES[space], CONFIG.hidden_sizes)
    optimizer, normalizer = make_optimizer(policy), Normalizer(3)
    orders = np.random.default_rng(7)
    if engine == "device":  # which draws its orders on the device
        monkeypatch.setattr(
            algorithm, "_order", lambda rows, rng: torch.from_numpy(orders.permutation(rows)).to(DEVICE)
        )
    ours, theirs = np.random.default_rng(7), np.random.default_rng(7)
    for number in range(3):
        policy.load_state_dict(parameters_of(algorithm))
        trajectory = made_up(algorithm, number, num_steps=CONFIG.rollout_length)
        before = parameters_to_vector(policy.parameters()).detach().clone()
        update(policy, optimizer, normalizer, rollout_of(trajectory), CONFIG, CONFIG.learning_rate, ours)
        algorithm.update(trajectory, theirs)
        wanted = {name: value.numpy() for name, value in policy.state_dict().items()}
        for name, value in parameters_of(algorithm).items():
            np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=1e-6, err_msg=f"{number}: {name}")
        moved = (parameters_to_vector(policy.parameters()) - before).abs().max()
        assert moved > 1e-3  # thousands of times the tolerance


def test_successors_are_the_true_ones() -> None:
    """Within an episode the next row; where it ended, the pole that fell; at the time limit, what the step led to."""
    limit = 12
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(4)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    torch.manual_seed(0)
    policy, obs = ActorCritic(4, envs.single_action_space, (16,)), envs.reset(seed=0)[0]
    rollout, last = collect(envs, policy, Normalizer(4), obs, 100)
    following = np.concatenate([rollout.obs[1:], last[None]])
    ended = rollout.terminated | rollout.truncated
    assert np.array_equal(rollout.next_obs[~ended], following[~ended])
    assert rollout.terminated.any()
    assert (np.abs(rollout.next_obs[rollout.terminated][:, [0, 2]]) > [2.4, 12 * np.pi / 180]).any(1).all()
    cut = rollout.truncated & ~rollout.terminated
    assert cut.any()
    dynamics = gymnasium.make("CartPole-v1").unwrapped
    for before, action, after in zip(rollout.obs[cut], rollout.action[cut], rollout.next_obs[cut], strict=True):
        dynamics.reset()
        dynamics.state = before.astype(np.float64)
        np.testing.assert_allclose(dynamics.step(int(action))[0], after, atol=1e-6)
    envs.close()


@pytest.mark.long
def test_it_learns() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "CartPole-v1", "--steps", "30000"], capture_output=True, text=True, check=True
    )
    last = done.stdout.splitlines()[-1]
    assert float(last.split("mean return")[1].split(";")[0]) > 195.0, done.stdout

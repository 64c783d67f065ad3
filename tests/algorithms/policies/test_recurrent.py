"""A policy that remembers: its cell, sequences against single steps, no leak across episodes, a task that needs it."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from loomrl.algorithms import ppo, recurrent_ppo
from loomrl.algorithms.advantages import generalized_advantages
from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.recurrent import GatedMemory, RecurrentPolicy
from loomrl.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.types import Trajectory

NUM_ENVS, LENGTH = 3, 4


class Cue(gymnasium.Env[Any, Any]):
    """Shown once, asked for four steps later: which of two cues was it?"""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space: gymnasium.Space[Any] = Discrete(2)
    delay = 4  # episodes are no multiple of a sequence

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return self.look(), {}

    def look(self) -> Any:
        return np.array([2 * self.cue - 1 if self.steps == 0 else 0, self.steps == self.delay], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps > self.delay
        return self.look(), float(over and np.ravel(action)[0] == self.cue), over, False, {}


class Dials(Cue):
    """The same with two dials to set."""

    action_space = MultiDiscrete([2, 3])


def algorithm_for(environment: type[Cue] = Cue, **values: Any) -> RecurrentPPO:
    defaults: dict[str, Any] = {
        "num_envs": NUM_ENVS, "rollout_length": 3 * LENGTH, "batch_size": 2 * LENGTH, "sequence_length": LENGTH,
        "hidden_sizes": (8,), "memory_size": 5,
    }  # fmt: skip
    config = RecurrentPPOConfig(**{**defaults, **values})
    spaces = environment.observation_space, environment.action_space
    return recurrent_ppo.build(config, *spaces, seed=1, total_env_steps=10_000)


def vector(environment: type[Cue], num_envs: int, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([environment] * num_envs, autoreset_mode=mode)


def collect(algorithm: RecurrentPPO, environment: type[Cue] = Cue, rollouts: int = 2) -> Trajectory:
    """The last of some rollouts: it begins within episodes, with memories that are not zero."""
    collector = Collector(vector(environment, algorithm.num_envs, AutoresetMode.SAME_STEP), seed=1, act=algorithm.act)
    rng = np.random.default_rng(0)
    for _ in range(rollouts):
        trajectory = collector.collect(algorithm.rollout_length, rng)
    return trajectory


def test_the_cell_equals_torchs() -> None:
    cell, reference = GatedMemory(4, 6, torch.Generator().manual_seed(1)), torch.nn.GRUCell(4, 6)
    with torch.no_grad():
        reference.weight_ih.copy_(cell.input.weight)
        reference.weight_hh.copy_(cell.memory.weight)
        for ours, theirs in ((cell.input, reference.bias_ih), (cell.memory, reference.bias_hh)):
            ours.bias.copy_(torch.randn(18))
            theirs.copy_(ours.bias)
    features, memory = torch.randn(9, 4), torch.rand(9, 6) * 2 - 1
    torch.testing.assert_close(cell(features, memory), reference(features, memory))


@pytest.mark.parametrize("environment", [Cue, Dials])
def test_sequences_give_the_probabilities_of_single_steps(environment: type[Cue]) -> None:
    algorithm = algorithm_for(environment)
    trajectory = collect(algorithm, environment)
    assert np.abs(trajectory.extras["memory"][0]).sum() > 0  # else the beginning would not be tested
    policy = algorithm.policy
    stepwise, values = [], []
    memory = torch.from_numpy(trajectory.extras["memory"][0])
    with torch.no_grad():
        for step in range(algorithm.rollout_length):
            if step:
                over = trajectory.terminated[step - 1] | trajectory.truncated[step - 1]
                memory = memory * torch.from_numpy(~over[:, None])
            out = policy.forward(torch.from_numpy(trajectory.obs[step]), memory)
            memory = out["state_out"]
            values.append(out["value"])
            one = Trajectory(**{**vars(trajectory), "action": trajectory.action[step : step + 1]})
            learnt = policy.distribution.raw_actions(one)
            stepwise.append(policy.distribution.log_prob_and_entropy((out["logits"],), learnt)[0])
    prepared = algorithm._prepare(trajectory)

    def cut(rows: list[torch.Tensor]) -> torch.Tensor:
        """By hand: for each piece of L steps, each environment's."""
        whole = torch.stack(rows)  # (T, B)
        pieces = range(0, algorithm.rollout_length, LENGTH)
        return torch.stack([whole[start : start + LENGTH, env] for start in pieces for env in range(NUM_ENVS)])

    torch.testing.assert_close(prepared.log_prob, cut(stepwise))
    torch.testing.assert_close(prepared.value, cut(values))
    with torch.no_grad():
        *_, log_prob = algorithm._losses(prepared, 0.2)
    torch.testing.assert_close(log_prob, prepared.log_prob)  # from the stored memories at the sequences' starts


def test_advantages_bootstrap_with_the_memory_after_the_step() -> None:
    algorithm = algorithm_for(normalize_advantages=False, normalize_observations=False)
    trajectory = collect(algorithm)
    truncated = trajectory.truncated.copy()
    truncated[4, 1] = True  # as at a time limit
    trajectory = Trajectory(**{**vars(trajectory), "truncated": truncated})
    policy, (num_steps, num_envs) = algorithm.policy, trajectory.reward.shape
    value, next_value = np.zeros((num_steps, num_envs)), np.zeros((num_steps, num_envs))
    with torch.no_grad():
        memory = torch.from_numpy(trajectory.extras["memory"][0])
        for step in range(num_steps):
            out = policy.forward(torch.from_numpy(trajectory.obs[step]), memory)
            value[step], after = out["value"].numpy(), out["state_out"]
            seen_next = policy.forward(torch.from_numpy(trajectory.next_obs[step]), after)
            next_value[step] = seen_next["value"].numpy()
            memory = after * torch.from_numpy(~(trajectory.terminated[step] | truncated[step])[:, None])
    expected = generalized_advantages(
        trajectory.reward, value, next_value, trajectory.terminated, truncated, 0.99, 0.95
    )  # (T, B)
    found = algorithm._prepare(trajectory).advantage
    assert found[0].numpy() == pytest.approx(expected[:LENGTH, 0], abs=1e-5)
    assert found[NUM_ENVS + 1].numpy() == pytest.approx(expected[LENGTH : 2 * LENGTH, 1], abs=1e-5)
    assert found[2 * NUM_ENVS + 2].numpy() == pytest.approx(expected[2 * LENGTH :, 2], abs=1e-5)


def test_gradients_end_where_episodes_begin() -> None:
    policy = algorithm_for().policy
    features = torch.randn(1, 5, 2, requires_grad=True)
    memory = torch.randn(1, 10, requires_grad=True)
    starts = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]])
    policy.unroll(features, memory, starts)[:, 4].sum().backward()
    assert features.grad is not None
    assert (features.grad[0, :3] == 0).all()
    assert (features.grad[0, 3:] != 0).any(-1).all()
    assert memory.grad is not None
    assert (memory.grad == 0).all()
    features.grad = None
    policy.unroll(features, memory, starts)[:, 2].sum().backward()
    assert (features.grad[0, :3] != 0).any(-1).all()  # within an episode they do go back


def test_the_collector_clears_the_memory_where_an_episode_begins() -> None:
    trajectory = collect(algorithm_for(), rollouts=1)
    memory = trajectory.extras["memory"]
    begun = np.zeros((len(memory), NUM_ENVS), np.bool_)
    begun[0], begun[1:] = True, trajectory.terminated[:-1]
    assert begun.sum() == NUM_ENVS * 3
    assert (memory[begun] == 0).all()
    assert (memory[~begun] != 0).any(-1).all()


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    policy = algorithm_for(memory_size=16).policy
    played = []
    for num_envs in (1, 4):
        with closing(vector(Cue, num_envs, AutoresetMode.DISABLED)) as envs:
            played.append(run_episodes(envs, policy.act, range(6), np.random.default_rng(0)))
    for one, other in zip(*played, strict=True):
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.obs, other.obs)


def test_round_trip_through_files(tmp_path: Any) -> None:
    policy = algorithm_for(Dials).policy
    policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    assert isinstance(loaded, RecurrentPolicy)
    obs, memory = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32), np.full((7, 10), 0.5, np.float32)
    for given in (None, memory):
        one, other = (each.act(obs, np.random.default_rng(0), given) for each in (policy, loaded))
        assert one.action.tobytes() == other.action.tobytes()
        assert one.memory is not None
        assert other.memory is not None
        assert one.memory.tobytes() == other.memory.tobytes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout_length": 10}, "rollout_length 10 is no multiple of sequence_length 4"),
        ({"batch_size": 3}, "batch_size 3 holds no whole sequence of 4 steps"),
        ({"engine": "compiled"}, "`engine: compiled` has no memory"),
        ({"num_threads": 2}, "`num_threads: 2` is the compiled engine's"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        algorithm_for(**values)


def greedy_return(plugin: Any, **values: Any) -> float:
    """The mean greedy return on Cue after 12,288 steps."""
    config = plugin.Config(
        num_envs=16, rollout_length=64, batch_size=256, n_epochs=4, learning_rate=3e-3, entropy_coef=0.01,
        learning_rate_schedule="constant", hidden_sizes=(32,), **values,
    )  # fmt: skip
    algorithm = plugin.build(config, Cue.observation_space, Cue.action_space, seed=1, total_env_steps=12_288)
    rng = np.random.default_rng(0)
    with closing(vector(Cue, 16, AutoresetMode.SAME_STEP)) as envs:
        collector = Collector(envs, seed=0, act=algorithm.act)
        for _ in range(12):
            algorithm.update(collector.collect(algorithm.rollout_length, rng), rng)
    with closing(vector(Cue, 16, AutoresetMode.DISABLED)) as envs:
        episodes = run_episodes(envs, algorithm.policy.act, range(100, 148), rng)
    return float(np.mean([episode.episode_return for episode in episodes]))


def test_it_learns_what_no_policy_without_memory_can() -> None:
    assert greedy_return(recurrent_ppo, memory_size=16, sequence_length=8) == 1.0
    assert greedy_return(ppo) < 0.8

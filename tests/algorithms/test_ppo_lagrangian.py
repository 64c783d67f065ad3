"""PPO with a limit on cost: what costs do to advantages, how the multiplier moves, which episodes count."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pydantic import ValidationError

from loomrl.algorithms.advantages import RewardScaler
from loomrl.algorithms.ppo.learner import PPO, first_policy
from loomrl.algorithms.ppo_lagrangian import (
    CostBatch,
    EpisodeCosts,
    Multiplier,
    PPOLagrangian,
    PPOLagrangianConfig,
    build,
)
from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.types import Trajectory

SIZES = {"num_envs": 2, "rollout_length": 6, "batch_size": 4, "n_epochs": 2, "hidden_sizes": (8,)}
OBSERVATION = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
ACTION = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


class Tempting(gymnasium.Env[Any, Any]):
    """Ten steps; to push forwards earns as much as it costs."""

    observation_space, action_space = OBSERVATION, ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        push = float(np.clip(action[0], 0.0, 1.0))
        return np.zeros(2, np.float32), push, False, self._steps == 10, self.told(push)

    def told(self, push: float) -> dict[str, Any]:
        return {"cost": push}


class Silent(Tempting):
    def told(self, push: float) -> dict[str, Any]:
        return {}


class Sparse(Tempting):
    """Tells a cost with every third step only."""

    def told(self, push: float) -> dict[str, Any]:
        return {"cost": 5.0} if self._steps % 3 == 1 else {}


class Broken(Tempting):
    def told(self, push: float) -> dict[str, Any]:
        return {"cost": np.nan}


def environments(kind: type[gymnasium.Env[Any, Any]], num_envs: int = 2) -> SyncVectorEnv:
    return SyncVectorEnv([kind] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def learner(**values: Any) -> PPOLagrangian:
    return build(PPOLagrangianConfig(**SIZES | values), OBSERVATION, ACTION, seed=1, total_env_steps=10_000)


def trajectory(cost: np.ndarray | None, rng: np.random.Generator, algorithm: PPOLagrangian) -> Trajectory:
    """T = 6 steps of B = 2 environments, one of which ends in the middle."""
    obs = rng.standard_normal((7, 2, 2)).astype(np.float32)
    acts = [algorithm.act(step, rng) for step in obs[:-1]]
    truncated = np.zeros((6, 2), np.bool_)
    truncated[3, 0] = True
    return Trajectory(
        obs=obs[:-1],
        action=np.stack([act.action for act in acts]),
        reward=rng.standard_normal((6, 2)),
        terminated=np.zeros((6, 2), np.bool_),
        truncated=truncated,
        next_obs=obs[1:],
        extras={name: np.stack([act.extras[name] for act in acts]) for name in acts[0].extras},
        cost=cost,
    )


# --- costs beside rewards ---------------------------------------------------------------------------------------


def test_costs_are_collected_also_with_the_step_that_ends_an_episode() -> None:
    envs = environments(Tempting)
    algorithm = learner(rollout_length=25)
    found = Collector(envs, 0, algorithm.act).collect(25, np.random.default_rng(0))
    assert found.cost is not None
    np.testing.assert_array_equal(found.cost, found.reward)
    assert found.truncated.any()


def test_a_step_that_tells_no_cost_costs_nothing() -> None:
    found = Collector(environments(Sparse), 0, learner().act).collect(12, np.random.default_rng(0))
    assert found.cost is not None
    assert found.cost[:, 0].tolist() == [5.0, 0.0, 0.0] * 3 + [5.0, 5.0, 0.0]  # the tenth step ends an episode


def test_costs_may_stop_once_they_were_told() -> None:
    algorithm, rng = learner(), np.random.default_rng(0)
    algorithm.update(trajectory(np.ones((6, 2)), rng, algorithm), rng)
    again = learner()
    again.load_state_dict(algorithm.state_dict())
    for one in (algorithm, again):
        metrics = one.update(trajectory(None, np.random.default_rng(1), one), np.random.default_rng(2))
        assert metrics["episode_cost"] == 0.0  # of the last steps, as many as an episode has


def test_episodes_that_are_always_cut_short_are_named() -> None:
    whole = trajectory(np.ones((6, 2)), np.random.default_rng(0), learner())
    endless = replace(whole, truncated=np.zeros((6, 2), np.bool_))
    costs = EpisodeCosts(2)
    with pytest.raises(
        ConfigError, match=r"checkpoint_interval_env_steps: every episode was cut short by a checkpoint"
    ):
        costs.add(endless.cut(), np.ones((6, 2)))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"engine": "compiled"}, "learns no costs"),
        ({"num_threads": 2}, "learns no costs"),
        ({"normalize_advantages": False}, "weighed against costs by normalised advantages"),
    ],
)
def test_parameters_that_mean_nothing_here_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PPOLagrangianConfig.model_validate(given)


def test_errors_of_the_second_critic_are_not_taken_for_costs() -> None:
    algorithm = learner(initial_multiplier=1.0)
    plain = PPO(algorithm.config, first_policy(algorithm.config, OBSERVATION, ACTION, 1), 10_000)
    with torch.no_grad():
        algorithm._cost_critic.head.value.weight.mul_(1e-4)
    found = trajectory(np.zeros((6, 2)), np.random.default_rng(5), algorithm)
    difference = algorithm._prepare(found).advantage - plain._prepare(found).advantage / 2.0
    assert difference.abs().max() < 0.01


def test_the_second_critic_begins_as_itself() -> None:
    algorithm = learner()
    own, actor = algorithm._cost_critic.encoder.layers[0].weight, algorithm.policy.actor.layers[0].weight
    assert not torch.allclose(own, actor)


class Wide(Tempting):
    def told(self, push: float) -> dict[str, Any]:
        return {"cost": np.array([push])}


def test_a_cost_that_is_not_one_number_is_named() -> None:
    with pytest.raises(EnvironmentFault, match=r'info\["cost"\] is .*of shape .*what a step cost is one number'):
        Collector(environments(Wide), 0, learner().act).collect(6, np.random.default_rng(0))


def test_whole_episodes_share_one_rule_about_costs() -> None:
    """Told at some steps, at none, and not as a number: 0, 0, and a fault."""
    envs = SyncVectorEnv([Sparse, Silent], autoreset_mode=AutoresetMode.DISABLED)
    sparse, silent = run_episodes(envs, learner().act, [0, 1], np.random.default_rng(0))
    assert sparse.episode_cost == 20.0
    assert silent.cost is not None
    assert silent.episode_cost == 0.0
    envs = SyncVectorEnv([Broken], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(EnvironmentFault, match=r'info\["cost"\] is nan in step 0 of the episode with seed 3'):
        run_episodes(envs, learner().act, [3], np.random.default_rng(0))


def test_an_environment_without_costs_is_named() -> None:
    algorithm = learner()
    found = Collector(environments(Silent), 0, algorithm.act).collect(6, np.random.default_rng(0))
    assert found.cost is None
    with pytest.raises(ConfigError, match=r'needs a cost beside the reward.*info\["cost"\] in 12 steps'):
        algorithm.update(found, np.random.default_rng(0))


def test_a_cost_that_is_not_finite_is_named() -> None:
    with pytest.raises(EnvironmentFault, match=r'environment 0 gave info\["cost"\] = nan'):
        Collector(environments(Broken), 0, learner().act).collect(6, np.random.default_rng(0))


# --- the mean cost ----------------------------------------------------------------------------------------------


def test_what_an_episode_costs_is_known_after_every_rollout() -> None:
    costs, rng, algorithm = EpisodeCosts(2), np.random.default_rng(0), learner()
    told = np.array([[1.0, 10.0]] * 6)
    whole = trajectory(told, rng, algorithm)
    endless = replace(whole, truncated=np.zeros((6, 2), np.bool_))
    costs.add(endless, told)
    assert costs.mean is None  # nobody knows how long an episode is
    costs.add(whole, told)
    assert costs.mean == 5.5 * 10  # the first environment's episode ended after 6 + 4 steps
    costs.add(whole.cut(), told)
    assert costs.mean == 5.5 * (10 + 6) / 2  # and after 2 + 4; what the cut ended says nothing
    costs.add(endless, np.zeros((6, 2)))
    assert costs.mean == pytest.approx(5.5 * 2 / 8 * 8)  # of the last 8 steps 6 were free


def test_at_least_a_rollout_tells_what_short_episodes_cost() -> None:
    costs, algorithm = EpisodeCosts(2), learner()
    short = trajectory(None, np.random.default_rng(0), algorithm)
    short = replace(short, truncated=np.ones((6, 2), np.bool_))
    costs.add(short, np.array([[0.0, 0.0]] * 3 + [[6.0, 0.0]] * 3))
    assert costs.mean == 1.5  # of one step


def test_the_multiplier_follows_the_limit_by_adam_and_stays_above_zero() -> None:
    multiplier = Multiplier(0.001, 0.035)
    reference = torch.nn.Parameter(torch.tensor(0.001, dtype=torch.float64))
    adam = torch.optim.Adam([reference], lr=0.035)
    for mean_cost in (100.0, 90.0, 30.0, 10.0, 0.0, *[0.0] * 30):
        multiplier.move(mean_cost, 25.0)
        reference.grad = torch.tensor(-(mean_cost - 25.0), dtype=torch.float64)
        adam.step()
        reference.data.clamp_(min=0.0)
        assert multiplier.value == pytest.approx(reference.item(), rel=1e-12)
    assert multiplier.value == 0.0


# --- what is learnt ---------------------------------------------------------------------------------------------


def by_hand(values: np.ndarray, next_values: np.ndarray, signal: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Advantages (6, 2) by the sum of discounted residuals, written out."""
    advantage = np.zeros_like(signal)
    for env in range(2):
        for start in range(6):
            weight = 1.0
            for step in range(start, 6):
                residual = signal[step, env] + 0.9 * next_values[step, env] - values[step, env]
                advantage[start, env] += weight * residual
                weight *= 0.9 * 0.8
                if ended[step, env]:
                    break
    return advantage


@pytest.mark.parametrize("multiplier", [0.0, 0.7, 4.0])
def test_advantages_of_rewards_and_costs_are_weighed_by_the_multiplier(multiplier: float) -> None:
    horizon = {"gamma": 0.9, "gae_lambda": 0.8, "cost_gamma": 0.9, "cost_gae_lambda": 0.8}
    algorithm = learner(initial_multiplier=multiplier, **horizon)
    plain = PPO(algorithm.config, first_policy(algorithm.config, OBSERVATION, ACTION, 1), 10_000)
    rng = np.random.default_rng(5)
    cost = rng.uniform(0.0, 2.0, (6, 2))
    found = trajectory(cost, rng, algorithm)
    batch, reward_only = algorithm._prepare(found), plain._prepare(found)
    assert isinstance(batch, CostBatch)
    with torch.no_grad():
        features = algorithm.policy.features(torch.from_numpy(found.obs.reshape(-1, 2)))
        successors = algorithm.policy.features(torch.from_numpy(found.next_obs.reshape(-1, 2)))
        value, next_value = (algorithm._cost_critic(part).numpy().reshape(6, 2) for part in (features, successors))
    ended = found.terminated | found.truncated
    scaled = RewardScaler(2, 0.9)(cost, ended)
    advantage = by_hand(value, next_value, scaled, ended)
    centred = (advantage - advantage.mean()).ravel() / max(advantage.std(), 0.1)
    expected = (reward_only.advantage.numpy() - multiplier * centred) / (1.0 + multiplier)
    np.testing.assert_allclose(batch.advantage.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(batch.cost_returns.numpy(), (advantage + value).ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch.returns.numpy(), reward_only.returns.numpy())


@pytest.mark.long
def test_costs_are_brought_under_the_limit_where_plain_ppo_takes_all() -> None:
    final = {}
    for limit in (100.0, 2.0):
        config = {"num_envs": 4, "rollout_length": 50, "batch_size": 50, "n_epochs": 8, "learning_rate": 0.01}
        algorithm = build(
            PPOLagrangianConfig(**config, hidden_sizes=(8,), cost_limit=limit, learning_rate_schedule="constant"),
            OBSERVATION, ACTION, seed=1, total_env_steps=100_000,
        )  # fmt: skip
        collector, rng = Collector(environments(Tempting, 4), 0, algorithm.act), np.random.default_rng(0)
        costs = []
        for _ in range(150):
            metrics = algorithm.update(collector.collect(50, rng), rng)
            costs.append(metrics["episode_cost"])
        final[limit] = float(np.mean(costs[-20:]))
    assert final[100.0] > 8.0
    assert final[2.0] < 2.5

"""DQN as a whole: exploring, schedules, targets that follow, priorities, determinism, exact resume, learning."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from loomrl.algorithms.dqn import learner as dqn
from loomrl.algorithms.policies.loading import policy_class
from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.environment.collecting.collector import Collector
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.dynamics import find_dynamics
from loomrl.training.config import ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.validation import Validation
from loomrl.types import Trajectory

OBSERVATION, ACTION = Box(-np.inf, np.inf, (4,), np.float32), Discrete(3, start=5)
SMALL: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 8, "gradient_steps": 4, "batch_size": 16, "hidden_sizes": (16, 16),
    "replay_capacity": 64, "learning_starts": 16,
}  # fmt: skip
ENGINES = ["torch", "compiled"]
VARIANTS: list[dict[str, Any]] = [
    {"n_step": 3},
    {"prioritized": True, "dueling": True, "num_quantiles": 4, "target_update_interval": 32},
]


def make(total_env_steps: int = 1000, **values: Any) -> dqn.DQN:
    return dqn.build(dqn.DQNConfig(**{**SMALL, **values}), OBSERVATION, ACTION, seed=1, total_env_steps=total_env_steps)


def rollout(algorithm: dqn.DQN, rng: np.random.Generator) -> Trajectory:
    """A trajectory of the algorithm's own actions on made-up observations."""
    obs = rng.normal(size=(9, 2, 4)).astype(np.float32)
    action = np.stack([algorithm.act(step, rng).action for step in obs[:8]])
    terminated = rng.random((8, 2)) < 0.1
    truncated = (rng.random((8, 2)) < 0.1) & ~terminated
    reward = rng.normal(size=(8, 2)) + (action == 6)
    return Trajectory(obs[:8], action, reward, terminated, truncated, obs[1:])


def train(algorithm: dqn.DQN, num_updates: int, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    return [algorithm.update(rollout(algorithm, rng), rng) for _ in range(num_updates)]


def everything(algorithm: dqn.DQN) -> dict[str, Any]:
    """The state with arrays as bytes."""
    state = algorithm.state_dict()
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in state.items()}


# --- exploring --------------------------------------------------------------------------------------------------


def test_epsilon_is_one_until_learning_starts_then_falls_linearly() -> None:
    algorithm = make(1000, learning_starts=16, epsilon_initial=0.9, epsilon_final=0.1, exploration_fraction=0.2)
    epsilon = algorithm.epsilons(np.array([0, 15, 16, 50, 100, 200, 900]))
    assert epsilon == pytest.approx([1.0, 1.0, 0.836, 0.7, 0.5, 0.1, 0.1])
    train(algorithm, 2)  # 32 steps
    assert algorithm.epsilons(np.array([0, 18])) == pytest.approx([0.9 - 0.8 * 0.16, 0.7])


def test_acting_moves_the_schedule_on_and_an_update_does_not_count_twice() -> None:
    algorithm = make(1000, learning_starts=0, epsilon_final=0.0, exploration_fraction=0.1)
    metrics = train(algorithm, 2)
    assert [row["epsilon"] for row in metrics] == pytest.approx([1 - 0.16, 1 - 0.32])


@pytest.mark.parametrize("prioritized", [False, True])
def test_the_learning_rate_falls_to_zero_at_the_last_step_and_gradient_steps_use_it(prioritized: bool) -> None:
    algorithm = make(total_env_steps=64, learning_rate=0.1, learning_rate_schedule="linear", prioritized=prioritized)
    used: list[float] = []
    step = algorithm.learner.step

    def watched(batch: Any, learning_rate: float) -> Any:
        used.append(learning_rate)
        return step(batch, learning_rate)

    algorithm.learner.step = watched  # type: ignore[method-assign]
    metrics = train(algorithm, 4)
    assert [row["learning_rate"] for row in metrics] == pytest.approx([0.075, 0.05, 0.025, 0.0])
    assert used[::4] == pytest.approx([0.075, 0.05, 0.025, 0.0])
    constant = train(make(total_env_steps=64, learning_rate=0.1), 4)
    assert {row["learning_rate"] for row in constant} == {0.1}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_learning_rate_of_zero_moves_nothing(engine: str) -> None:
    algorithm = make(engine=engine)
    train(algorithm, 1)
    before = algorithm.policy.arrays()
    batch = algorithm._batch
    algorithm.learner.step(batch, 0.0)
    assert all(np.array_equal(value, before[name]) for name, value in algorithm.policy.arrays().items())
    algorithm.learner.step(batch, 0.1)
    assert not all(np.array_equal(value, before[name]) for name, value in algorithm.policy.arrays().items())


@pytest.mark.parametrize("engine", ENGINES)
def test_actions_are_greedy_but_for_a_share_of_epsilon(engine: str) -> None:
    constant = {"epsilon_initial": 0.3, "epsilon_final": 0.3, "learning_starts": 0}
    algorithm = make(engine=engine, num_envs=8000, replay_capacity=8000, **constant)
    obs = np.random.default_rng(1).normal(size=(8000, 4)).astype(np.float32)
    action = algorithm.act(obs, np.random.default_rng(2)).action
    assert set(action.tolist()) == {5, 6, 7}
    greedy = algorithm.policy(obs)
    assert np.mean(action == greedy) == pytest.approx(0.7 + 0.3 / 3, abs=0.02)
    explored = action[action != greedy]
    assert np.bincount(explored - 5).min() > 0


# --- schedules, targets, priorities -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_target_is_copied_at_its_interval_only(engine: str) -> None:
    algorithm = make(engine=engine, target_update_interval=48)
    first = algorithm.learner.state_dict()
    train(algorithm, 2)  # 32 steps
    before = algorithm.learner.state_dict()
    assert np.array_equal(before["target"], first["target"])
    assert not np.array_equal(before["parameters"], first["parameters"])
    train(algorithm, 1)  # crosses 48: copied before the gradient steps
    assert np.array_equal(algorithm.learner.state_dict()["target"], before["parameters"])


def test_an_interval_that_rollouts_step_over_counts_too() -> None:
    algorithm = make(target_update_interval=40)  # between 32 and 48 steps
    train(algorithm, 2)
    before = algorithm.learner.state_dict()["parameters"]
    train(algorithm, 1)
    assert np.array_equal(algorithm.learner.state_dict()["target"], before)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_target_follows_by_averaging_after_each_gradient_step(engine: str) -> None:
    algorithm = make(engine=engine, tau=0.25, gradient_steps=1)
    before = algorithm.learner.state_dict()
    train(algorithm, 1)
    after = algorithm.learner.state_dict()
    expected = 0.75 * before["target"] + 0.25 * after["parameters"]
    assert not np.array_equal(before["target"], after["target"])
    assert after["target"] == pytest.approx(expected, abs=1e-6)


def test_gradient_steps_begin_when_enough_was_seen_and_follow_what_was_collected() -> None:
    algorithm = make(learning_starts=30, gradient_steps=None)
    assert [row["num_gradient_steps"] for row in train(algorithm, 3)] == [0.0, 16.0, 16.0]


class Recorder(PrioritizedReplay):
    """Remembers with which beta it was sampled and what priorities it was given."""

    def sample(self, batch_size: int, rng: Any, beta: float = 0.4, out: Any = None) -> Any:
        self.betas = [*getattr(self, "betas", []), beta]
        return super().sample(batch_size, rng, beta, out)

    def update_priorities(self, index: Any, priority: Any) -> None:
        self.given = (index.copy(), priority.copy())
        super().update_priorities(index, priority)


@pytest.mark.parametrize("engine", ENGINES)
def test_priorities_are_td_errors_and_beta_rises_to_one(engine: str) -> None:
    algorithm = make(64, engine=engine, prioritized=True, gradient_steps=1, importance_exponent=0.4)
    recorder = Recorder(algorithm._replay.spec, 0.6)
    algorithm._replay = recorder
    metrics = train(algorithm, 4)
    assert recorder.betas == pytest.approx([0.4 + 0.6 * step / 64 for step in (16, 32, 48, 64)])
    assert np.mean(recorder.given[1]) == pytest.approx(metrics[-1]["td_error"], rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_importance_weights_scale_each_transitions_gradient(engine: str) -> None:
    """A weight of zero is as good as a transition that is not there, but for the mean's denominator."""
    one, other = (make(engine=engine, max_grad_norm=1e9) for _ in range(2))
    batch = one._batch
    rng = np.random.default_rng(0)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(16, 4)), rng.normal(size=(16, 4))
    batch.action[:], batch.terminated[:], batch.discount[:] = rng.integers(5, 8, 16), False, 0.9
    batch.reward[:], batch.weight[:] = rng.normal(size=16), 1.0
    batch.weight[8:] = 0.0
    weighted, _ = one.learner.step(batch, 1e-3)
    for name in ("obs", "next_obs", "action", "terminated", "discount", "reward"):
        getattr(batch, name)[8:] = getattr(batch, name)[:8]
    batch.weight[:] = 1.0
    plain, _ = other.learner.step(batch, 1e-3)
    assert weighted[0] == pytest.approx(plain[0] / 2, rel=1e-5)
    assert weighted[3] == pytest.approx(plain[3] / 2, rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_extreme_rewards_leave_everything_finite(engine: str) -> None:
    algorithm = make(engine=engine, prioritized=True)
    rng = np.random.default_rng(0)
    for scale in (1e30, -1e30, 0.0):
        found = rollout(algorithm, rng)
        metrics = algorithm.update(Trajectory(**{**vars(found), "reward": found.reward * scale}), rng)
        assert np.isfinite(list(metrics.values())).all()
    assert all(np.isfinite(value).all() for value in algorithm.policy.arrays().values())


# --- determinism and resume -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_seeds_give_equal_bytes_and_a_resumed_run_goes_on_to_the_bit(
    engine: str, variant: dict[str, Any]
) -> None:
    one, other = make(engine=engine, **variant), make(engine=engine, **variant)
    train(one, 6)
    train(other, 6)
    assert everything(one) == everything(other)
    resumed = make(engine=engine, **variant)
    resumed.load_state_dict(one.state_dict())
    train(one, 3, seed=9)
    train(resumed, 3, seed=9)
    assert everything(resumed) == everything(one)
    assert everything(resumed) != everything(other)


def test_the_saved_policy_is_what_was_learnt(tmp_path: Any) -> None:
    from loomrl.algorithms.policies.loading import load_policy

    algorithm = make(dueling=True, num_quantiles=3)
    train(algorithm, 2)
    algorithm.policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    assert type(loaded) is policy_class("dqn") is dqn.Policy
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(loaded(obs), algorithm.policy(obs))


# --- acting in compiled environments ----------------------------------------------------------------------------


def cartpole(num_envs: int, mode: str) -> BatchedVectorEnv:
    dynamics = find_dynamics("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert dynamics is not None
    modes = {"resumable": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}
    return BatchedVectorEnv(gymnasium.make("CartPole-v1"), dynamics, num_envs, modes[mode], 500, "CartPole-v1")


def on_cartpole(total_env_steps: int, seed: int = 1, **values: Any) -> dqn.DQN:
    env = gymnasium.make("CartPole-v1")
    config = dqn.DQNConfig(**values)
    return dqn.build(config, env.observation_space, env.action_space, seed=seed, total_env_steps=total_env_steps)


@pytest.mark.parametrize("variant", [{}, {"dueling": True, "num_quantiles": 4}])
def test_the_compiled_rollout_is_the_collectors(variant: dict[str, Any]) -> None:
    algorithm = on_cartpole(400, hidden_sizes=(16, 16), exploration_fraction=0.5, learning_starts=0, **variant)
    own = algorithm.collector(cartpole(8, "resumable"), 7)
    usual = Collector(cartpole(8, "resumable"), 7, algorithm.act)
    assert type(own) is not Collector
    first, second = np.random.default_rng(3), np.random.default_rng(3)
    found = own.collect(40, first)
    expected = usual.collect(40, second)
    for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert own.finished == usual.finished
    assert first.bit_generator.state == second.bit_generator.state


def test_it_learns_cartpole() -> None:
    algorithm = on_cartpole(60_000)
    validation = Validation(ValidationConfig(interval_env_steps=2048, num_episodes=20, stop_at_return=475), cartpole)
    loop = TrainingLoop(
        algorithm, cartpole, seed=1, total_env_steps=60_000, segment_env_steps=None, validation=validation
    )
    for _ in loop.run():
        pass
    assert loop.stop_reason == "stop_at_return"


@pytest.mark.parametrize(
    ("space", "engine"),
    [
        (Box(0, 255, (12, 12, 1), np.uint8), "torch"),
        (Discrete(6), "torch"),
        (Box(-1.0, 1.0, (2, 3), np.float64), "compiled"),
    ],
)
def test_observations_of_every_kind_are_learnt_from(space: gymnasium.Space[Any], engine: str) -> None:
    config = dqn.DQNConfig(**{**SMALL, "dueling": True})
    algorithm = dqn.build(config, space, ACTION, seed=1, total_env_steps=100)
    assert algorithm.engine == engine
    space.seed(0)
    obs = np.stack([[space.sample() for _ in range(2)] for _ in range(9)])
    rng, before = np.random.default_rng(0), algorithm.policy.arrays()
    action = np.stack([algorithm.act(step, rng).action for step in obs[:8]])
    none = np.zeros((8, 2), np.bool_)
    metrics = algorithm.update(Trajectory(obs[:8], action, np.ones((8, 2)), none, none, obs[1:]), rng)
    assert np.isfinite(list(metrics.values())).all()
    assert any(not np.array_equal(value, before[name]) for name, value in algorithm.policy.arrays().items())

"""Which policy is kept and when training stops, on a scripted environment whose return is the policy's own number."""

import multiprocessing
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from unreliable_env import Aging

from loomrl.algorithms.base import LearntPolicy
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment import make
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs, settle_backend
from loomrl.environment.resolve import Definition, resolve
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import Autoreset, choose, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.training.config import ValidationConfig
from loomrl.training.validation import Validation


class Echo(gymnasium.Env[np.ndarray, np.ndarray]):
    """One step; the reward is the action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1000, 1000, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), float(action[0]), True, False, {}


def echo(num_envs: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
    assert autoreset == "disabled"
    return SyncVectorEnv([Echo] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def play_and_judge(
    validation: Validation, policy: LearntPolicy, step: int, cost_limit: float | None = None
) -> dict[str, Any]:
    row = validation.play(policy, step, cost_limit)
    validation.judge(row, policy)
    return row


def validated(returns: list[float], **config: Any) -> Validation:
    """Validate a policy that earns each of `returns` in turn, every 10 steps, until a reason to stop."""
    validation = Validation(ValidationConfig(interval_env_steps=10, num_episodes=2, **config), echo)
    policy = ActorCriticPolicy.for_spaces("ppo", Echo.observation_space, Echo.action_space, (4,), "tanh", False)
    for index, value in enumerate(returns):
        with torch.no_grad():
            policy.head.mean.bias.fill_(value)
        row = play_and_judge(validation, policy, 10 * (index + 1))
        assert row["mean_return"] == value
        if validation.stop_reason():
            break
    return validation


def test_the_success_rate_is_the_share_of_episodes_that_reach_the_success_return() -> None:
    validation = validated([1, 7], success_return=7.0)
    assert [row["success_rate"] for row in validation.rows] == [0.0, 1.0]
    assert "success_rate" not in validated([1]).rows[0]
    policy = ActorCriticPolicy.for_spaces("ppo", Echo.observation_space, Echo.action_space, (4,), "tanh", False)
    by_threshold = Validation(ValidationConfig(num_episodes=2), echo, reward_threshold=-1.0)
    assert by_threshold.play(policy, 10)["success_rate"] == 1.0


class Judged(Echo):
    """Says itself what a success is: to have done less than 5. With an odd seed it says nothing."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.is_silent = bool(seed and seed % 2)
        return super().reset(seed=seed, options=options)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, *flags, _ = super().step(action)
        return obs, reward, *flags, {} if self.is_silent else {"is_success": reward < 5.0}


@pytest.mark.parametrize(
    ("success_return", "reward_threshold", "rates"),
    [
        (None, None, [1.0, 0.0]),  # of the episodes of which it is known
        (None, 6.0, [0.5, 0.5]),
        (6.0, None, [0.0, 1.0]),
        (6.0, 0.0, [0.0, 1.0]),
    ],
)
def test_success_is_what_it_is_in_evaluation(
    success_return: float | None, reward_threshold: float | None, rates: list[float]
) -> None:
    def judged(num_envs: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([Judged] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    config = ValidationConfig(num_episodes=2, success_return=success_return)
    validation = Validation(config, judged, reward_threshold)
    policy = ActorCriticPolicy.for_spaces("ppo", Echo.observation_space, Echo.action_space, (4,), "tanh", False)
    found = []
    for value in (1.0, 7.0):
        with torch.no_grad():
            policy.head.mean.bias.fill_(value)
        found.append(validation.play(policy, 10)["success_rate"])
    assert found == rates


def test_the_best_policy_is_kept_and_of_equals_the_latest() -> None:
    validation = validated([1, 7, 3, 7, 2])
    assert (validation.best_return, validation.best_step) == (7.0, 40)
    assert validation.best["head.mean.bias"].tolist() == [7.0]


def test_stagnation_ends_training_after_patience() -> None:
    validation = validated([1, 5, 5, 4, 9], patience=2)
    assert (validation.stop_reason(), len(validation.rows)) == ("stagnation", 4)


def test_small_improvements_are_no_progress_together_they_are() -> None:
    assert validated([1, 2, 3], patience=2, min_improvement=5).stop_reason() == "stagnation"
    assert validated([1, 4, 7, 10, 13], patience=2, min_improvement=5).stop_reason() is None


def test_stop_at_return() -> None:
    validation = validated([1, 8, 3, 8, 8, 8], stop_at_return=8, stop_after_validations=2)
    assert (validation.stop_reason(), validation.best_step) == ("stop_at_return", 50)


class Priced(Echo):
    """Earns what is done, and costs a tenth of it beyond 10; `done` is told, too."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"cost": max(0.0, reward - 10.0) / 10.0, "done": 2.0 * reward}


def priced(returns: list[float], cost_limit: float | None, **config: Any) -> Validation:
    def envs(num_envs: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([Priced] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    validation = Validation(ValidationConfig(interval_env_steps=10, num_episodes=2, **config), envs)
    policy = ActorCriticPolicy.for_spaces("ppo", Echo.observation_space, Echo.action_space, (4,), "tanh", False)
    for index, value in enumerate(returns):
        with torch.no_grad():
            policy.head.mean.bias.fill_(value)
        play_and_judge(validation, policy, 10 * (index + 1), cost_limit)
        if validation.stop_reason():
            break
    return validation


def test_within_a_limit_on_costs_returns_decide_and_beyond_it_the_excess() -> None:
    validation = priced([60.0, 40.0, 12.0, 15.0, 90.0], cost_limit=0.5)
    assert (validation.best_return, validation.best_step, validation.best_excess) == (15.0, 40, 0.0)
    assert [row["mean_cost"] for row in validation.rows] == [5.0, 3.0, 0.2, 0.5, 8.0]
    assert [row["cost_excess"] for row in validation.rows] == [4.5, 2.5, 0.0, 0.0, 7.5]
    beyond = priced([60.0, 30.0, 50.0], cost_limit=0.5)
    assert (beyond.best_return, beyond.best_excess) == (30.0, 1.5)
    without = priced([60.0, 30.0], cost_limit=None)
    assert (without.best_return, "cost_excess" in without.rows[0]) == (60.0, False)


def test_less_excess_is_progress_and_a_return_beyond_the_limit_is_not_enough() -> None:
    assert priced([60.0, 50.0, 40.0, 30.0], cost_limit=0.5, patience=2).stop_reason() is None
    assert priced([60.0, 59.9, 59.8], cost_limit=0.5, patience=2).stop_reason() == "stagnation"
    assert priced([60.0], cost_limit=0.5, stop_at_return=20).stop_reason() is None
    assert priced([15.0], cost_limit=0.5, stop_at_return=15).stop_reason() == "stop_at_return"


def test_costs_count_after_a_restart() -> None:
    before = priced([60.0, 12.0], cost_limit=0.5)
    after = Validation(before.config, echo)
    after.load_state_dict(before.state_dict(), before.best)
    assert (after.best_excess, after.best_return) == (0.0, 12.0)


def test_an_objective_is_recorded_beside_returns() -> None:
    rows = priced([3.0, 4.0], cost_limit=None, objective="done").rows
    assert [(row["objective"], row["mean_objective"], row["objectives"]) for row in rows] == [
        ("done", 6.0, [6.0, 6.0]),
        ("done", 8.0, [8.0, 8.0]),
    ]
    with pytest.raises(
        ConfigError, match=r"training.validation.objective: .*no numeric key 'joy'; its keys: cost, done"
    ):
        priced([3.0], cost_limit=None, objective="joy")


class Lottery(Echo):
    """Pays 60 for certain or, to whoever does more than 100, what was done in one of four episodes."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.lucky = seed is not None and seed % 4 == 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        gambles = action[0] > 100
        gain = (float(action[0]) if self.lucky else 0.0) if gambles else 60.0
        return np.zeros(1, np.float32), gain, True, False, {}


def test_the_mean_decides_and_not_the_luckiest_episode() -> None:
    def lottery(num_envs: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
        assert autoreset == "disabled"
        return SyncVectorEnv([Lottery] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    validation = Validation(ValidationConfig(interval_env_steps=10, num_episodes=4), lottery)
    policy = ActorCriticPolicy.for_spaces("ppo", Echo.observation_space, Echo.action_space, (4,), "tanh", False)
    rows = []
    for step, value in ((10, 1.0), (20, 200.0)):
        with torch.no_grad():
            policy.head.mean.bias.fill_(value)
        rows.append(play_and_judge(validation, policy, step))
    assert [(row["mean_return"], row["max_return"]) for row in rows] == [(60.0, 60.0), (50.0, 200.0)]
    assert (validation.best_return, validation.best_step) == (60.0, 10)


@pytest.mark.parametrize(("backend", "num_made"), [("serial", 3), ("processes", 1)])
def test_environments_that_are_kept_are_as_new(backend: str, num_made: int) -> None:
    definition = resolve(EnvironmentConfig(id="aging", entry_point="unreliable_env:Aging"), Path())
    made: list[VectorEnv[Any, Any, Any]] = []

    def counted(num_envs: int, autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
        made.append(make_vector(Recipe(definition), num_envs, autoreset, backend))
        return made[-1]

    policy = ActorCriticPolicy.for_spaces("ppo", Aging.observation_space, Aging.action_space, (4,), "tanh", False)
    with closing(Validation(ValidationConfig(num_episodes=2), counted)) as validation:
        assert [play_and_judge(validation, policy, step)["mean_return"] for step in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert len(made) == num_made
    assert all(envs.closed for envs in made)
    if backend == "processes":
        assert not multiprocessing.active_children()


def test_a_back_end_with_seeding_of_its_own_is_replaced_by_proof_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_snapshot(EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1), tmp_path, tmp_path / "snapshot")
    settle_backend(tmp_path / "snapshot", "device")
    proofs = []

    def counted(definition: Definition) -> str:
        proofs.append(definition.name)
        return choose(definition)

    monkeypatch.setattr(make, "choose", counted)
    for _ in range(3):
        with closing(make_envs(tmp_path / "snapshot", 2, "disabled")) as envs:
            assert isinstance(envs, BatchedVectorEnv)
    assert proofs == ["CartPole-v1"]


@pytest.mark.parametrize(("step", "due"), [(9, False), (10, True), (19, True)])
def test_due_at_every_interval(step: int, due: bool) -> None:
    assert Validation(ValidationConfig(interval_env_steps=10), echo).due(step) is due


def test_not_due_twice_in_an_interval() -> None:
    validation = validated([1.0])
    assert not validation.due(19)
    assert validation.due(20)


def test_state_round_trip() -> None:
    whole, part = validated([1, 5, 4], patience=2), Validation(ValidationConfig(patience=2), echo)
    part.load_state_dict(whole.state_dict(), whole.best)
    assert part.state_dict() == whole.state_dict()
    fresh = Validation(ValidationConfig(), echo)
    fresh.load_state_dict(Validation(ValidationConfig(), echo).state_dict(), {})
    assert fresh.best_return == -np.inf

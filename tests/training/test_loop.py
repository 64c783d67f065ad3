"""The training loop's segments: they end as at a time limit, and each begins with episodes of its own."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.training.config import ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.validation import Validation
from loomrl.types import Act, Trajectory


class Walk(gymnasium.Env[np.ndarray, int]):
    """Begins at a random place; terminates after three steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.random()), 0
        return np.array([self.place, 0.0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.array([self.place, float(self.steps)]), 1.0, self.steps == 3, False, {}


class Memory(Algorithm):
    """An algorithm that learns nothing and forgets nothing; its policy counts updates."""

    num_envs, rollout_length = 2, 4

    def __init__(self) -> None:
        self.seen: list[Trajectory] = []
        self.num_saved = 0
        self._policy = ActorCriticPolicy.for_spaces(
            "ppo", Walk.observation_space, Walk.action_space, (4,), "tanh", False
        )

    @property
    def policy(self) -> ActorCriticPolicy:
        return self._policy

    def act(self, obs: np.ndarray, rng: np.random.Generator) -> Act:
        return Act(action=rng.integers(0, 2, len(obs)))

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        self.seen.append(trajectory)
        with torch.no_grad():
            self.policy.head.logits.bias.fill_(float(len(self.seen)))
        return {"num_seen": float(len(self.seen))}

    def state_dict(self) -> dict[str, Any]:
        self.num_saved += 1
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def make_envs(num_envs: int, autoreset: str) -> VectorEnv[Any, Any, Any]:
    modes = {"resumable": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}
    return SyncVectorEnv([Walk] * num_envs, autoreset_mode=modes[autoreset])


def loop() -> TrainingLoop:
    """Three segments of two rollouts of 4 steps."""
    algorithm: Any = Memory()
    return TrainingLoop(algorithm, make_envs, seed=5, total_env_steps=48, segment_env_steps=16, validation=None)


def seen(trained: TrainingLoop) -> list[Trajectory]:
    algorithm: Any = trained.algorithm
    return algorithm.seen


def test_the_last_step_of_a_segment_is_truncated_where_its_episode_goes_on() -> None:
    trained = loop()
    assert len(list(trained.run())) == 3
    for number, trajectory in enumerate(seen(trained)):
        assert (trajectory.terminated == (trajectory.next_obs[..., 1] == 3)).all()  # never more than the environment's
        last = number % 2 == 1  # of its segment
        assert not trajectory.truncated[:-1].any()
        assert (trajectory.truncated[-1] == last).all()  # after 4 and 8 steps no episode of 3 has ended
    assert not any(trajectory.terminated[-1].any() for trajectory in seen(trained))


def test_a_segment_that_ends_with_an_episode_is_not_cut() -> None:
    algorithm: Any = Memory()
    algorithm.rollout_length = 3
    trained = TrainingLoop(algorithm, make_envs, seed=5, total_env_steps=12, segment_env_steps=6, validation=None)
    assert len(list(trained.run())) == 2
    for trajectory in seen(trained):
        assert trajectory.terminated[-1].all()
        assert not trajectory.truncated.any()


def test_every_segment_begins_with_other_episodes_and_after_a_resume_with_the_same() -> None:
    undisturbed, interrupted, resumed = loop(), loop(), loop()
    list(undisturbed.run())
    starts = [trajectory.obs[0] for trajectory in seen(undisturbed)[::2]]
    assert len(np.unique(starts)) == 1 + 3 * 2  # the step counts are all zero
    resumed.restore(next(interrupted.run()))
    list(resumed.run())
    for one, other in zip(seen(undisturbed)[2:], seen(resumed), strict=True):
        for name in ("obs", "action", "next_obs", "truncated"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_state_is_built_where_a_checkpoint_is_due_and_when_training_has_ended() -> None:
    trained, asked = loop(), iter([False, True])
    algorithm: Any = trained.algorithm
    assert [checkpoint.step for checkpoint in trained.run(lambda: next(asked))] == [32, 48]
    assert algorithm.num_saved == 2


def test_a_resumed_run_still_knows_the_best_policy_so_far() -> None:
    def validated() -> TrainingLoop:
        algorithm: Any = Memory()
        config = ValidationConfig(interval_env_steps=8, num_episodes=2)
        return TrainingLoop(
            algorithm, make_envs, seed=5, total_env_steps=48, segment_env_steps=16,
            validation=Validation(config, make_envs),
        )  # fmt: skip

    interrupted, resumed = validated(), validated()
    checkpoint = next(interrupted.run())
    resumed.restore(checkpoint)
    before, after = interrupted.validation, resumed.validation
    assert before is not None
    assert after is not None
    assert (after.best_return, after.best_step, after.rows) == (3.0, 16, before.rows)
    assert after.best["head.logits.bias"].tolist() == [2.0, 2.0]
    assert after.state_dict() == before.state_dict()

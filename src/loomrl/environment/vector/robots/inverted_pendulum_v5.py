"""InvertedPendulum: keep a pole on a cart upright."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import Fields, Robot, StepOutcome, uniform_reset
from loomrl.types import FloatArray


def _observe(bare: Any, now: Fields) -> FloatArray:  # noqa: ARG001
    return np.concatenate([now["qpos"], now["qvel"]], axis=1)


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:  # noqa: ARG001
    observation = _observe(bare, after)
    terminated = ~np.isfinite(observation).all(axis=1) | (np.abs(observation[:, 1]) > 0.2)
    survive = (~terminated).astype(np.int64)
    return StepOutcome(survive.astype(np.float64), terminated, {"reward_survive": survive})


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.inverted_pendulum_v5:InvertedPendulumEnv",
    reset=uniform_reset,
    observe=_observe,
    outcome=_outcome,
)

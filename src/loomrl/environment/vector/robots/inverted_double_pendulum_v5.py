"""InvertedDoublePendulum: keep two poles on a cart upright."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import Fields, Robot, StepOutcome, normal_reset, squares
from loomrl.types import FloatArray


def _observe(bare: Any, now: Fields) -> FloatArray:  # noqa: ARG001
    qpos = now["qpos"]
    return np.concatenate(
        [
            qpos[:, :1],
            np.sin(qpos[:, 1:]),
            np.cos(qpos[:, 1:]),
            np.clip(now["qvel"], -10, 10),
            np.clip(now["qfrc_constraint"], -10, 10)[:, :1],
        ],
        axis=1,
    )


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:  # noqa: ARG001
    x, y = after["site_xpos"][:, 0, 0], after["site_xpos"][:, 0, 2]
    v1, v2 = after["qvel"][:, 1], after["qvel"][:, 2]
    terminated = y <= 1
    distance = 0.01 * squares(x) + squares(y - 2)
    velocity = 1e-3 * squares(v1) + 5e-3 * squares(v2)
    alive = bare._healthy_reward * (~terminated).astype(np.int64)
    info = {"reward_survive": alive, "distance_penalty": -distance, "velocity_penalty": -velocity}
    return StepOutcome(alive - distance - velocity, terminated, info)


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.inverted_double_pendulum_v5:InvertedDoublePendulumEnv",
    reset=normal_reset,
    observe=_observe,
    outcome=_outcome,
    fields=("qpos", "qvel", "site_xpos", "qfrc_constraint"),
)

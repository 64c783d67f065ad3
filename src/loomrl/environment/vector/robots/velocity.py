"""The robots of `loomrl.gym.velocity`: a step's info has its cost, too."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots import ant_v5, half_cheetah_v5, hopper_v5, swimmer_v5, walker2d_v5
from loomrl.environment.vector.robots.base import Fields, Robot, StepOutcome


def _limited(robot: Robot, name: str) -> Robot:
    """The same robot as the class `name` has it, which says how fast a step was."""

    def outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
        reward, terminated, info = robot.outcome(bare, before, after, actions)
        cost = (bare.speed(info) > bare.velocity_limit).astype(np.float64)
        return StepOutcome(reward, terminated, info | {"cost": cost})

    return replace(robot, entry_point=f"loomrl.gym.velocity:{name}", outcome=outcome)


ANT = _limited(ant_v5.ROBOT, "AntVelocity")
HALF_CHEETAH = _limited(half_cheetah_v5.ROBOT, "HalfCheetahVelocity")
HOPPER = _limited(hopper_v5.ROBOT, "HopperVelocity")
SWIMMER = _limited(swimmer_v5.ROBOT, "SwimmerVelocity")
WALKER = _limited(walker2d_v5.ROBOT, "Walker2dVelocity")

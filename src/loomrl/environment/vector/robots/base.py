"""What a MuJoCo environment adds to the simulation, for B of them at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.types import FloatArray

Fields = Mapping[str, FloatArray]  # name in mjData -> (B, *shape)
Info = dict[str, NDArray[Any]]  # key -> (B, ...)


class StepOutcome(NamedTuple):
    """What a step gave: arrays (B,), and the info's entries as arrays (B, ...)."""

    reward: FloatArray
    terminated: NDArray[np.bool_]
    info: Info


def no_info(bare: Any, now: Fields) -> Info:  # noqa: ARG001
    """An empty info: that of a reset of a robot that says nothing."""
    return {}


@dataclass(frozen=True)
class Robot:
    """Observation, reward and reset of the Gymnasium class at `entry_point`; `bare` is one instance of it."""

    entry_point: str
    reset: Callable[[Any, np.random.Generator], tuple[FloatArray, FloatArray]]  # qpos (nq,) and qvel (nv,) as drawn
    observe: Callable[[Any, Fields], FloatArray]  # (B, O) float64
    outcome: Callable[[Any, Fields, Fields, NDArray[Any]], StepOutcome]  # before, after, actions (B, A)
    reset_info: Callable[[Any, Fields], Info] = no_info
    fields: tuple[str, ...] = field(default=("qpos", "qvel"))  # what of mjData the above read


def uniform_reset(bare: Any, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """The first positions (nq,) and velocities (nv,) of an episode, both moved by uniform noise."""
    scale = bare._reset_noise_scale
    qpos = bare.init_qpos + rng.uniform(-scale, scale, bare.model.nq)
    return qpos, bare.init_qvel + rng.uniform(-scale, scale, bare.model.nv)


def normal_reset(bare: Any, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """The first positions (nq,), moved by uniform noise, and velocities (nv,), by normal noise."""
    scale = bare._reset_noise_scale
    qpos = bare.init_qpos + rng.uniform(-scale, scale, bare.model.nq)
    return qpos, bare.init_qvel + scale * rng.standard_normal(bare.model.nv)


def joint_state(bare: Any, now: Fields, num_excluded: int = 1) -> FloatArray:
    """Observations (B, O): positions, without the first `num_excluded` where these are not observed, and velocities."""
    skipped = num_excluded * int(bare._exclude_current_positions_from_observation)
    return np.concatenate([now["qpos"][:, skipped:], now["qvel"]], axis=1)


def plane_info(bare: Any, now: Fields) -> Info:  # noqa: ARG001
    """The info of a reset: where B robots are on the plane, (B,) each, in metres."""
    xy = now["qpos"][:, :2]
    return {"x_position": xy[:, 0], "y_position": xy[:, 1], "distance_from_origin": _distance(xy)}


def control_cost(bare: Any, actions: NDArray[Any]) -> NDArray[Any]:
    """Weighted sums (B,) of squared actions, in the actions' dtype as in Gymnasium."""
    cost: NDArray[Any] = bare._ctrl_cost_weight * np.sum(np.square(actions), axis=1)
    return cost


def inside(values: FloatArray, limits: tuple[float, float]) -> NDArray[np.bool_]:
    """Which values lie strictly between two limits, bool of the values' shape."""
    low, high = limits
    return np.asarray((low < values) & (values < high))


def _distance(xy: FloatArray) -> FloatArray:
    """Distances (B,) of points (B, 2) from the origin, each as `numpy.linalg.norm` computes it for one."""
    return np.array([np.linalg.norm(point, ord=2) for point in xy])


def squares(values: FloatArray) -> FloatArray:
    """Squares (B,) as Gymnasium takes them, of one number at a time: the C library's `pow`, not `x * x`."""
    return np.array([value**2 for value in values])

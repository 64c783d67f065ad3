"""Regions of observations as a config names them, and what must not happen there as limits on a network's outputs."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from loomrl.errors import ConfigError
from loomrl.safety.constraints import exact

Array = NDArray[np.float64]
Refused = Callable[[str], ConfigError]  # makes the error that names the config's key, as `refusal` does
_COMPONENT = re.compile(r"^observation\[(\d+)\]$")


def _is_component(name: str) -> str:
    if not _COMPONENT.match(name):
        raise ValueError(f"{name!r} is no component; write `observation[0]`")
    return name


def _in_order(limits: list[float]) -> list[float]:
    if limits[0] > limits[1]:
        raise ValueError(f"low {limits[0]} is above high {limits[1]}; there is no such observation")
    return limits


Component = Annotated[str, AfterValidator(_is_component)]
Range = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_in_order)]
# Ranges of components. One that is left out has the range of the observation space, which must then be finite.
Region = dict[Component, Range]


def refusal(check: str, key: str, name: str) -> Refused:
    """What makes the error that names one of several entries of a check's config: a function of the problem, in words,
    that gives a ConfigError."""
    return lambda problem: ConfigError(f"safety.checks.{check}.{key}: {name}: {problem}")


def place_of(component: str, space: Any, refused: Refused) -> int:
    """The index of a component of a vector of floats, from its name `observation[i]`.

    Raises:
        ConfigError: the one that `refused` makes, where the space is no vector of floats or has no such component.
    """
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or len(space.shape) != 1:
        raise refused(f"observations are {space}; a region is a box of a vector of floats")
    match = _COMPONENT.match(component)
    assert match is not None, "the config was validated"
    place = int(match.group(1))
    if place >= space.shape[0]:
        raise refused(f"there is no {component}; observations have {space.shape[0]} components")
    return place


def box_of(region: Mapping[str, list[float]], space: Any, refused: Refused) -> tuple[Array, Array]:
    """The region's lowest and highest observation, (num_inputs,) each.

    Raises:
        ConfigError: the one that `refused` makes, where the space is no vector of floats, lacks a component, or one has
            no finite range, and where no observation of the space is in the region.
    """
    places = {place_of(component, space, refused): limits for component, limits in region.items()}
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or len(space.shape) != 1:
        raise refused(f"observations are {space}; a region is a box of a vector of floats")
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    for place, limits in places.items():
        least, most = np.asarray(limits, space.dtype)  # rounded as observations are
        if least > space.high[place] or most < space.low[place]:
            raise refused(
                f"region: observation[{place}] in [{exact(limits[0])}, {exact(limits[1])}] is outside the observation "
                f"space, which ends at {low[place]:g} and {high[place]:g}; no observation is there"
            )
        low[place], high[place] = limits
    for index in np.flatnonzero(~(np.isfinite(low) & np.isfinite(high))).tolist():
        raise refused(f"region: observation[{index}] has no finite range in the space; give one")
    return low, high


def region_demand(region: Mapping[str, list[float]], space: Any, refused: Refused) -> tuple[float, ...]:
    """Numbers of which none is smaller the larger a region is, as `Demand` compares them.

    Raises:
        ConfigError: as `box_of` does.
    """
    low, high = box_of(region, space, refused)
    return (*(-low).tolist(), *high.tolist())


def described(region: Mapping[str, list[float]]) -> str:
    """A region as words for a message, such as `observation[0] in [0, 1] and observation[1] in [-1, 1]`; `any value`
    for an empty one."""
    parts = [f"{component} in [{exact(low)}, {exact(high)}]" for component, (low, high) in sorted(region.items())]
    return " and ".join(parts) or "any value"


def preferred(choice: int, count: int) -> Array:
    """Rows (count - 1, count): rows @ logits are all at most 0 where `choice` has the largest of `count` logits."""
    others = [index for index in range(count) if index != choice]
    rows = np.zeros((len(others), count))
    rows[np.arange(len(others)), others] = 1.0
    rows[:, choice] = -1.0
    return rows

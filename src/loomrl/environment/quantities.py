"""The words for what limits are on, in `safety.constraints` and in `training.boundaries`."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

COST = "cost"  # the key of an info that says what a step cost
_COMPONENT = re.compile(r"^(observation|action)\[(\d+)\]$")


def kind_of(quantity: str) -> str:
    """Of `observation[i]`, `action[i]` and `info.KEY` the first word; any other quantity is its own kind."""
    return re.split(r"[\[.]", quantity, maxsplit=1)[0]


def component(quantity: str, values: NDArray[np.generic]) -> NDArray[np.float64]:
    """The component of (N, *shape) values that a quantity means, (N,); they must have it (see `absent`)."""
    flat = np.asarray(values).reshape(len(values), -1)
    return np.asarray(flat[:, place_of(quantity)], dtype=np.float64)


def place_of(quantity: str) -> int:
    """Which component of a flattened observation or action is meant; 0 where there is but one."""
    return _index(quantity) or 0


def absent(quantity: str, size: int) -> str | None:
    """What is wrong with a limit on a component of something with `size` of them; None when it is there.

    `action` alone is the only component there is.
    """
    name, index = kind_of(quantity), _index(quantity)
    if (index is None and size != 1) or (index or 0) >= size:
        return (
            f"found quantity {quantity!r}, but this environment's {name} has {size} "
            f"component{'' if size == 1 else 's'}: {name}[0] ... {name}[{size - 1}]"
        )
    return None


def absent_from(quantity: str, observation_space: Any, action_space: Any) -> str | None:
    """What is wrong with a limit on a component that the Gymnasium space of its name does not have.

    None where it is there, and for quantities that are neither of observations nor of actions.
    """
    kind = kind_of(quantity)
    spaces = {"observation": observation_space, "action": action_space}
    if kind not in spaces:
        return None
    shape = spaces[kind].shape
    if shape is None:
        return (
            f"limits need numbered components, which the {kind} space {spaces[kind]} does not have; wrap the "
            "environment so that it is a Box"
        )
    return absent(quantity, int(np.prod(shape, dtype=np.int64)))


def _index(quantity: str) -> int | None:
    match = _COMPONENT.match(quantity)
    return int(match.group(2)) if match else None

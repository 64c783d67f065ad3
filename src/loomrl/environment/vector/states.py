"""The state of a batch of B environments, from which they go on to the bit: arrays by name, every one (B, ...).

So the states of two batches are joined to that of one, and one is divided, by rows alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import EnvironmentFault

State = dict[str, NDArray[Any]]
_WORD = 2**64


def joined(states: Sequence[Mapping[str, NDArray[Any]]]) -> State:
    """The state of all environments, in their order. Where second axes differ in length, the shorter end in zeros."""
    return {name: _stacked([state[name] for state in states]) for name in states[0]}


def _stacked(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({part.shape[1:] for part in parts}) > 1:
        longest = max(part.shape[1] for part in parts)
        parts = [np.pad(part, [(0, 0), (0, longest - part.shape[1])] + [(0, 0)] * (part.ndim - 2)) for part in parts]
    return np.concatenate(parts)


def rows_of(state: Mapping[str, NDArray[Any]], rows: slice | NDArray[np.int64]) -> State:
    """The state of some of the environments."""
    return {name: values[rows] for name, values in state.items()}


def generator_words(generators: Iterable[np.random.Generator | None], name: str) -> NDArray[np.uint64]:
    """The states of B generators over PCG64, which `gymnasium.utils.seeding` makes: (B, 6) uint64.

    Raises:
        EnvironmentFault: where an environment called `name` has none before its first reset.
    """
    rows = []
    for generator in generators:
        if generator is None:
            raise EnvironmentFault(f"environment {name!r}: call reset before state_dict")
        state = generator.bit_generator.state
        own, step = state["state"]["state"], state["state"]["inc"]
        rows.append([*divmod(own, _WORD), *divmod(step, _WORD), state["has_uint32"], state["uinteger"]])
    return np.array(rows, np.uint64).reshape(-1, 6)


def generators_of(words: NDArray[np.uint64]) -> list[np.random.Generator]:
    """The generators that go on from rows of `generator_words`."""
    found = []
    for high, low, step_high, step_low, has_uint32, uinteger in words.tolist():
        bits = np.random.PCG64(0)
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": high * _WORD + low, "inc": step_high * _WORD + step_low},
            "has_uint32": has_uint32,
            "uinteger": uinteger,
        }
        found.append(np.random.Generator(bits))
    return found

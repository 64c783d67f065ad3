"""States of several replays as those of others: a replay is made of its environments' columns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.spec import State

_COLUMNS = ("head", "obs", "action", "reward", "flags", "priority")  # (B, ...)
_SIDES = (("final_keys", "finals"), ("start_keys", "starts"))  # keys r * B + b, and what they stand for
Column = tuple[State, int]  # whose, and which


def redistribute(states: Sequence[State], num_parts: int, num_envs: int) -> list[State]:
    """States for `num_parts` replays of `num_envs` environments each, made of those of other replays in memory, all
    with equally many rows.

    A replay is made of one column for each environment. The columns of all `states` are put side by side and dealt out
    in order. Where there are too few the first are dealt again, where there are too many the last are left out.
    """
    columns = [(state, b) for state in states for b in range(len(_array(state, "head")))]
    wanted = [columns[place % len(columns)] for place in range(num_parts * num_envs)]
    return [_of(wanted[first : first + num_envs]) for first in range(0, len(wanted), num_envs)]


def _of(columns: list[Column]) -> State:
    first, _ = columns[0]
    state: State = {"num_written": first["num_written"]}
    for name in _COLUMNS:
        if name in first:
            state[name] = np.stack([_array(owner, name)[b] for owner, b in columns])
    for keys, values in _SIDES:
        state[keys], state[values] = _entries(columns, keys, values)
    if "largest_priority" in first:
        state["largest_priority"] = max(float(owner["largest_priority"]) for owner, _ in columns)
    return state


def _entries(columns: list[Column], keys: str, values: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """A side store's entries of these columns, under the keys they have beside each other."""
    found_keys, found = [], []
    for place, (owner, b) in enumerate(columns):
        row, env = np.divmod(_array(owner, keys), len(_array(owner, "head")))
        found_keys.append(row[env == b] * len(columns) + place)
        found.append(_array(owner, values)[env == b])
    key = np.concatenate(found_keys)
    order = np.argsort(key)
    return key[order], np.concatenate(found)[order]


def _array(state: State, name: str) -> NDArray[np.generic]:
    return np.asarray(state[name])

"""What learners leave of a training, as one checkpoint, and what each goes on from: as many learners, or others.

Where their number changes, what all have in common stays: parameters, statistics, counts, curves, the best policy.
What differs from learner to learner is dealt out anew:

- environments with their episodes under way, replayed transitions, and whatever else belongs to one environment:
  environment by environment; where rounding up makes more of them, the first are dealt again;
- float arrays, such as Adam's moments after steps of their own, target networks, the outer momentum and what
  compression left out: everyone gets their mean, which for error feedback is what they would have sent together;
- generators of random numbers: each keeps its own; a new learner's is seeded with another's state and its rank;
- the rest: a new learner begins with another's.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.base import State, below
from loomrl.algorithms.replay.columns import redistribute
from loomrl.environment.vector import states
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.loop import ENVIRONMENTS
from loomrl.training.processes import union
from loomrl.types import Json

_OWN = ("algorithm.", "peers.", ENVIRONMENTS)  # arrays of a checkpoint that differ from learner to learner
_OWN_VALUES = ("algorithm", "rng")
_OTHERS = re.compile(r"learner\d+(\.|$)")
_REPLAY = "algorithm.replay."
_BY_ENVIRONMENT = (  # (B,)
    "algorithm.reward_scaler.running",
    "algorithm.cost_scaler.running",
    "algorithm.episode_costs.elapsed",
)


def joined(parts: Sequence[Checkpoint]) -> Checkpoint:
    """One joint checkpoint made of those of all learners, in the order of ranks: the first learner's, with the arrays
    and values of the others that are their own under `learnerN.`."""
    first, *others = parts
    arrays, values = dict(first.arrays), dict(first.values)
    for rank, part in enumerate(others, 1):
        arrays |= {f"learner{rank}.{name}": array for name, array in part.arrays.items() if name.startswith(_OWN)}
        values[f"learner{rank}"] = {name: part.values[name] for name in _OWN_VALUES}
    values["processes"] = union(*(part.values["processes"] for part in parts))
    return Checkpoint(first.step, arrays, values)


def num_learners(checkpoint: Checkpoint) -> int:
    """The number of learners whose states a joint checkpoint holds, at least 1."""
    return 1 + sum(1 for name in checkpoint.values if _OTHERS.match(name))


def part_of(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """The checkpoint of the learner `rank`, as a joint checkpoint contains it. A rank that it does not contain raises
    KeyError."""
    arrays = {name: array for name, array in checkpoint.arrays.items() if not _OTHERS.match(name)}
    values = {name: value for name, value in checkpoint.values.items() if not _OTHERS.match(name)}
    if rank > 0:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(_OWN)}
        arrays |= below(f"learner{rank}.", checkpoint.arrays)
        values |= checkpoint.values[f"learner{rank}"]
    return replace(checkpoint, arrays=arrays, values=values)


def divided(checkpoint: Checkpoint, number: int, num_envs: int) -> Checkpoint:
    """A joint checkpoint from which `number` learners with `num_envs` environments each can go on, made of one that any
    number of learners has left; the same one where there were as many."""
    old = [part_of(checkpoint, rank) for rank in range(num_learners(checkpoint))]
    if len(old) == number:
        return checkpoint
    replays = _divided_replays(old, number, num_envs)
    environments = states.joined([below(ENVIRONMENTS, part.arrays) for part in old])
    return joined([_part(old, rank, num_envs, replays[rank], environments) for rank in range(number)])


def _part(old: list[Checkpoint], rank: int, num_envs: int, replay: State, environments: states.State) -> Checkpoint:
    own = old[rank % len(old)]
    places = np.arange(rank * num_envs, (rank + 1) * num_envs)
    arrays = {name: array for name, array in own.arrays.items() if not name.startswith((_REPLAY, ENVIRONMENTS))}
    for name in arrays:
        theirs = [part.arrays[name] for part in old]
        if name in _BY_ENVIRONMENT:
            arrays[name] = np.concatenate(theirs).take(places, mode="wrap")
        elif name.startswith(_OWN):
            arrays[name] = _common(theirs, rank)
    arrays |= {f"{ENVIRONMENTS}{name}": value.take(places, 0, mode="wrap") for name, value in environments.items()}
    arrays |= {f"{_REPLAY}{name}": value for name, value in replay.items() if isinstance(value, np.ndarray)}
    numbers = {f"replay.{name}": value for name, value in replay.items() if not isinstance(value, np.ndarray)}
    values = own.values | {
        "algorithm": own.values["algorithm"] | numbers,
        "rng": _generator([part.values["rng"] for part in old], rank),
    }
    return replace(own, arrays=arrays, values=values)


def _common(arrays: list[NDArray[Any]], rank: int) -> NDArray[Any]:
    """The learners' mean; one's, where they have none or are equal."""
    first = arrays[0]
    equal = all(np.array_equal(array, first) for array in arrays)
    if equal or first.dtype.kind != "f" or any(array.shape != first.shape for array in arrays):
        return arrays[rank % len(arrays)]
    mean: NDArray[Any] = np.mean(arrays, 0, np.float64).astype(first.dtype)
    return mean


def _divided_replays(old: list[Checkpoint], number: int, num_envs: int) -> list[State]:
    """Empty states of algorithms without a replay."""
    states = [below(_REPLAY, part.arrays) | below("replay.", part.values["algorithm"]) for part in old]
    return redistribute(states, number, num_envs) if states[0] else [{} for _ in range(number)]


def _generator(states: list[Json], rank: int) -> Json:
    """A learner's own, or a new one. That is seeded with another's state and with the rank: jumping ahead of the other
    would give learners that come one after another the same numbers."""
    if rank < len(states):
        return states[rank]
    state = states[rank % len(states)]["state"]["state"]
    generator: Any = np.random.PCG64([state, rank])
    own: Json = generator.state
    return own

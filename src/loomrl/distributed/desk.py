"""Where the learners of one training leave what the process that began it is to know: one Ray actor beside it."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from loomrl.algorithms.base import below
from loomrl.errors import LoomRLError
from loomrl.training.checkpoints import Checkpoint
from loomrl.types import Json

_OWN = ("algorithm.", "peers.")  # arrays of a checkpoint that differ from learner to learner
_OWN_VALUES = ("algorithm", "rng")
_OTHERS = re.compile(r"learner\d+(\.|$)")


@dataclass
class News:
    """What was left since this was last asked for."""

    checkpoints: list[Checkpoint] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    validations: list[Json] = field(default_factory=list)
    restored: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Desk:
    """Learners that were lost are begun again from its newest checkpoint, which all of them have left their part of."""

    def __init__(self, num_learners: int, newest: Checkpoint | None) -> None:
        self._num_learners, self._newest = num_learners, newest
        self._parts: dict[int, Checkpoint] = {}
        self._news = News()
        self._failure: LoomRLError | None = None

    def begin(self, rank: int) -> Checkpoint | None:
        """What a learner goes on from; None: from the start.

        Raises:
            LoomRLError: what a learner has failed with, which it would again.
        """
        if self._failure is not None:
            raise self._failure
        self._parts.pop(rank, None)
        return None if self._newest is None else part_of(self._newest, rank)

    def leave(self, rank: int, part: Checkpoint) -> None:
        """A learner's checkpoint; with those of all others at the same step it is one of the training."""
        self._parts[rank] = part
        if len(self._parts) == self._num_learners and len({one.step for one in self._parts.values()}) == 1:
            self._newest = joined([self._parts[rank] for rank in range(self._num_learners)])
            self._news.checkpoints = [self._newest]  # who asks rarely needs the last one only
            self._parts = {}

    def tell(self, kind: str, what: Any) -> None:
        """One of the `News`, by the name of its field."""
        getattr(self._news, kind).append(what)

    def fail(self, error: LoomRLError) -> None:
        """Of a learner: training ends with it."""
        self._failure = self._failure or error

    def failure(self) -> LoomRLError | None:
        """What training ends with, unless it goes well."""
        return self._failure

    def take(self) -> News:
        """All news; afterwards there are none."""
        news, self._news = self._news, News()
        return news


def joined(parts: list[Checkpoint]) -> Checkpoint:
    """One checkpoint of all learners', in the order of ranks: the first's, with what is the others' own beside it."""
    first, *others = parts
    arrays, values = dict(first.arrays), dict(first.values)
    for rank, part in enumerate(others, 1):
        arrays |= {f"learner{rank}.{name}": array for name, array in part.arrays.items() if name.startswith(_OWN)}
        values[f"learner{rank}"] = {name: part.values[name] for name in _OWN_VALUES}
    return Checkpoint(first.step, arrays, values)


def part_of(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """What one learner left of it."""
    arrays = {name: array for name, array in checkpoint.arrays.items() if not _OTHERS.match(name)}
    values = {name: value for name, value in checkpoint.values.items() if not _OTHERS.match(name)}
    if rank > 0:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(_OWN)}
        arrays |= below(f"learner{rank}.", checkpoint.arrays)
        values |= checkpoint.values[f"learner{rank}"]
    return replace(checkpoint, arrays=arrays, values=values)

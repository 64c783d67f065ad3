"""Decisions column by column, however they were written: each in a record of its own, or many in one."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from loomrl.storage.audit.records import (
    DECISION,
    DECISIONS,
    FULL_BATCH,
    array,
    column,
    holds,
    is_taken_over,
    row_ids,
    spans,
)
from loomrl.storage.audit.sealing import opened
from loomrl.types import Json

_Rows = Sequence[int] | None  # of a record; all of them for None


class Columns:
    """N decisions in their order, as `decision` and `decisions` records hold them. A column that a record does not hold
    raises `KeyError`."""

    def __init__(self, entries: Sequence[Json], rows: Sequence[_Rows] | None = None) -> None:
        """What is sealed in the records must be opened. `rows` are the chosen ones of each record; None: all."""
        self._pieces = list(zip(entries, rows or [None] * len(entries), strict=True))
        self._counts = [count_of(entry) if chosen is None else len(chosen) for entry, chosen in self._pieces]

    def __len__(self) -> int:
        return sum(self._counts)

    def of(self, name: str) -> list[Any]:
        """The values of the column `name`, one for each of the N decisions, in their order."""
        return self._gathered(lambda entry: column(entry, name))

    def array(self, name: str) -> NDArray[Any]:
        """The values of the column `name` as one array, (N, ...).

        Raises:
            ValueError: where those of one decision have another shape than those of another.
        """
        if all(entry["kind"] == DECISION for entry, _ in self._pieces):
            return np.array(self.of(name))
        found = ((array(entry, name), rows) for entry, rows in self._pieces)
        return np.concatenate([values if rows is None else values[_place(rows)] for values, rows in found])

    def ids(self) -> list[str]:
        """The `decision_id` of each of the N decisions."""
        return self._gathered(_ids)

    def written_ids(self) -> Json | list[str]:
        """The ids of the N decisions as a record holds them: short, by their places in their records, where each
        record's follow each other, and else in a list."""
        found = []
        for entry, rows in self._pieces:
            if entry["kind"] == DECISION:
                found.append((entry["decision_id"], -1, 0))
            elif rows is None or isinstance(rows, range):
                places = rows or range(count_of(entry))
                found.append((entry["decision_id"], places.start, places.stop))
            else:
                return self.ids()
        return spans(found)

    def own(self) -> list[bool]:
        """For each of the N decisions, whether the version that its record names chose it: not a person, not a
        fallback, not chance."""
        return self._gathered(lambda entry: _unless(entry, "exploration_flag"))

    def as_served(self) -> list[bool]:
        """For each of the N decisions, whether the version that its record names decided it as it is served: what the
        server's `share` of exploration drew is part of that; what a person, a fallback or an agent asked for is not."""
        known = "asked_to_explore"  # where it is not on record, what was explored was asked for
        return self._gathered(lambda entry: _unless(entry, known if holds(entry, known) else "exploration_flag"))

    def on_trial(self) -> list[bool]:
        """Which of the N decisions a version took that was dealt, and neither a person nor a fallback."""
        return self._gathered(lambda entry: [not is_taken_over(entry.get("shared", entry))] * count_of(entry))

    def tokens(self) -> list[str]:
        """For each of the N decisions, the name of the holder under whose token it was asked, where that token may
        speak for any number of agents, else an empty text."""
        return self._gathered(tokens_of)

    def times_allowed(self) -> NDArray[np.float64]:
        """For each decision, (N,), how many times as long as a single one it may take, for what a large request takes
        is not its policy's doing: 1 where up to 256 were made together, beyond that their number / 256.
        """
        together = self._gathered(_num_together)
        return np.maximum(np.array(together, dtype=np.float64) / FULL_BATCH, 1.0)

    def only(self, wanted: Sequence[bool]) -> Self:
        """Those decisions whose entry in `wanted`, (N,), is true, as other `Columns`; these where all are."""
        if all(wanted):
            return self
        entries, chosen, start = [], list[_Rows](), 0
        for (entry, rows), count in zip(self._pieces, self._counts, strict=True):
            places = range(count) if rows is None else rows
            kept = [row for row, is_wanted in zip(places, wanted[start : start + count], strict=True) if is_wanted]
            start += count
            if kept:
                entries.append(entry)
                chosen.append(None if rows is None and len(kept) == count else kept)
        return type(self)(entries, chosen)

    def parts(self, count: int) -> list[Self]:
        """The N decisions in their order, cut into parts of `count`, the last one perhaps of fewer; empty for none."""
        return [self._between(start, start + count) for start in range(0, len(self), count)]

    def _gathered(self, values_of: Callable[[Json], list[Any]]) -> list[Any]:
        """The values that each record has, of the chosen decisions alone."""
        found: list[Any] = []
        for entry, rows in self._pieces:
            values = values_of(entry)
            found += values if rows is None else [values[row] for row in rows]
        return found

    def _between(self, start: int, stop: int) -> Self:
        entries, chosen, first = [], list[_Rows](), 0
        for (entry, rows), count in zip(self._pieces, self._counts, strict=True):
            some = slice(max(start - first, 0), max(min(stop - first, count), 0))
            first += count
            if some.start < some.stop:
                entries.append(entry)
                chosen.append(rows if some == slice(0, count) else (range(count) if rows is None else rows)[some])
        return type(self)(entries, chosen)


def _place(rows: Sequence[int]) -> slice | list[int]:
    return slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)


def own_choices(entries: Sequence[Json]) -> Columns:
    """Those decisions among records of any kind that the version named there chose itself, with what is sealed opened.

    Others say nothing of what a policy does.

    Raises:
        ArtifactError: when what is sealed was changed.
    """
    decisions = Columns([opened(entry) for entry in entries if _decides(entry)])
    return decisions.only(decisions.own())


def count_of(entry: Json) -> int:
    """How many decisions a `decision` or `decisions` record holds; 1 for a record of any other kind, too."""
    count: int = entry["shared"]["count"] if entry["kind"] == DECISIONS else 1
    return count


def version_of(entry: Json) -> str:
    """The version that a record of one decision or of several names; it must be of one of these kinds."""
    version: str = (entry["shared"] if entry["kind"] == DECISIONS else entry)["version"]
    return version


def runs(entries: Sequence[Json]) -> Iterator[list[Json]]:
    """The records in their order, in groups: decisions of one version that follow each other; any other record
    alone."""
    for version, found in groupby(entries, lambda entry: version_of(entry) if _decides(entry) else None):
        if version is None:
            yield from ([entry] for entry in found)
        else:
            yield list(found)


def _decides(entry: Json) -> bool:
    return entry["kind"] in (DECISION, DECISIONS)


def _ids(entry: Json) -> list[str]:
    whole = entry["decision_id"]
    return row_ids(whole, 0, entry["shared"]["count"]) if entry["kind"] == DECISIONS else [whole]


def tokens_of(entry: Json) -> list[str]:
    """For each decision of a record, the name of the holder under whose token it was asked, where that token may speak
    for any number of agents, else an empty text."""
    if not holds(entry, "by_token"):
        return [""] * count_of(entry)
    tokens = column(entry, "by_token")
    return tokens if None not in tokens else [token or "" for token in tokens]


def _num_together(entry: Json) -> list[int]:
    return column(entry, "num_together") if holds(entry, "num_together") else [1] * count_of(entry)


def _unless(entry: Json, flag: str) -> list[bool]:
    """For each decision, whether a version on trial made it and this flag of it is not set."""
    if is_taken_over(entry.get("shared", entry)):
        return [False] * count_of(entry)
    return [not is_set for is_set in column(entry, flag)]

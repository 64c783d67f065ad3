"""Decisions column by column, however they were written: each in a record of its own, or many in one."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Self

from loomrl.serving.records import DECISION, DECISIONS, column, is_own_choice, is_taken_over
from loomrl.serving.sealing import opened
from loomrl.types import Json


class Columns:
    """N decisions in their order, as `decision` and `decisions` records hold them."""

    def __init__(self, entries: Sequence[Json]) -> None:
        """What is sealed in the records must be opened."""
        self._entries = entries
        self._rows: list[int] | None = None  # the chosen ones; all of them for None
        self._count = sum(map(count_of, entries))

    def __len__(self) -> int:
        return self._count

    def of(self, name: str) -> list[Any]:
        """One value for each decision, (N,)."""
        return self._chosen(
            [
                value
                for entry in self._entries
                for value in (column(entry, name) if entry["kind"] == DECISIONS else (entry[name],))
            ]
        )

    def ids(self) -> list[str]:
        """The `decision_id` of each, (N,)."""
        return self._chosen([name for entry in self._entries for name in _ids(entry)])

    def own(self) -> list[bool]:
        """Whether the version that is named chose it, for each: not a person, not a fallback, not chance; (N,)."""
        return self._chosen([is_own for entry in self._entries for is_own in _own(entry)])

    def only(self, wanted: Sequence[bool]) -> Self:
        """Those decisions, of N, that are wanted."""
        if all(wanted):
            return self
        chosen = type(self)(self._entries)
        before = range(chosen._count) if self._rows is None else self._rows
        chosen._rows = [row for row, is_wanted in zip(before, wanted, strict=True) if is_wanted]
        chosen._count = len(chosen._rows)
        return chosen

    def _chosen(self, values: list[Any]) -> list[Any]:
        return values if self._rows is None else [values[row] for row in self._rows]


def own_choices(entries: Sequence[Json]) -> Columns:
    """Those decisions among records, opened, that their version chose: others say nothing of what a policy does."""
    decisions = Columns([opened(entry) for entry in entries if _decides(entry)])
    return decisions.only(decisions.own())


def count_of(entry: Json) -> int:
    """How many decisions a record holds, if it holds decisions."""
    count: int = entry["shared"]["count"] if entry["kind"] == DECISIONS else 1
    return count


def version_of(entry: Json) -> str:
    """The version that a record of one decision or of several names."""
    version: str = (entry["shared"] if entry["kind"] == DECISIONS else entry)["version"]
    return version


def runs(entries: Sequence[Json]) -> Iterator[list[Json]]:
    """Records that can be taken together: decisions of one version that follow each other; any other alone."""
    for version, found in groupby(entries, lambda entry: version_of(entry) if _decides(entry) else None):
        if version is None:
            yield from ([entry] for entry in found)
        else:
            yield list(found)


def _decides(entry: Json) -> bool:
    return entry["kind"] in (DECISION, DECISIONS)


def _ids(entry: Json) -> Sequence[str]:
    whole = entry["decision_id"]
    return [f"{whole}.{row}" for row in range(entry["shared"]["count"])] if entry["kind"] == DECISIONS else (whole,)


def _own(entry: Json) -> Sequence[bool]:
    if entry["kind"] == DECISION:
        return (is_own_choice(entry),)
    explored = column(entry, "exploration_flag")
    if is_taken_over(entry["shared"]):
        return [False] * len(explored)
    return [not flag for flag in explored]

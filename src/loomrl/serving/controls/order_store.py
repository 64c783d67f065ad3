"""Orders on the disk: the file, the copy beside it, and the room that is reserved for where neither can be written.

The copy is written first; both have a digest of their content. A file that is damaged is set aside, and written anew
from its copy and what else is known. One that a newer LoomRL wrote, or that cannot be read, is left alone, and orders
are kept in the reserve.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import filelock

from loomrl.errors import ArtifactError
from loomrl.serving.controls.order_file import Found, SavedControls, found_in, found_in_reserve, stated
from loomrl.storage.audit.reserve import Reserve, TooLong
from loomrl.storage.loomdb.records import Control

log = logging.getLogger(__name__)
_NUM_REPLACED_IN_RESERVE = 2  # where room is short, besides those that stand in the file
_LOCK_SECONDS = 10.0  # that another process may hold the file; what was ordered is in force meanwhile
_MISSING = "orders may be missing here"


@dataclass(frozen=True)
class Kept:
    """What was found when file, copy and reserve were read; nothing, before."""

    file: Found = Found()
    copy: Found = Found()
    reserve: Found = Found()

    @cached_property
    def in_file(self) -> SavedControls:
        """What the file says, or its copy, which is written first, where the file is not whole. What the copy of one
        says that a newer LoomRL wrote may be over."""
        if self.file.is_whole or self.file.is_newer:
            return self.file.saved
        return _joined(self.copy.saved, self.file.saved)

    @cached_property
    def orders(self) -> SavedControls:
        """What stands in the file and in the reserve together, which may be one order in several versions."""
        return _joined(self.in_file, self.reserve.saved)

    @property
    def closed(self) -> str | None:
        """Why file and copy are left alone: one of the two must be."""
        return self.file.closed or self.copy.closed

    @property
    def unread(self) -> str | None:
        """What the disk did not give; a copy is not asked for where the file is whole."""
        is_copy_needed = not (self.file.is_whole or self.file.is_newer)
        asked = (self.file, *([self.copy] if is_copy_needed else []), self.reserve)
        return next((one.closed for one in reversed(asked) if one.is_unread), None)

    @property
    def unknown(self) -> str | None:
        """Why one of them may hold what is not known here."""
        if self.file.is_newer or self.copy.is_newer or not (self.file.is_whole or self.copy.is_whole):
            why = self.closed or self.reserve.closed
        else:
            why = self.reserve.closed
        return why and f"{why}; {_MISSING}"

    @property
    def newly_lost(self) -> str | None:
        """Of which damage nothing has a whole text."""
        why = self.reserve.damage
        if self.file.damage is not None and self.closed is None and not self.copy.is_whole:
            why = f"{self.file.damage}, and there is no whole copy of it"
        return why and f"{stated(why)}: {_MISSING}"

    @property
    def is_outdated(self) -> bool:
        """Whether an earlier version wrote the file, or it has no whole copy."""
        has_no_copy = not self.copy.is_there or self.copy.damage is not None
        return self.file.is_whole and self.closed is None and (not self.file.is_sealed or has_no_copy)

    @property
    def is_movable(self) -> bool:
        """Whether orders stand in the reserve that the file might take."""
        return self.closed is None and self.reserve.closed is None and bool(self.reserve.saved.controls)

    def holds(self, wanted: SavedControls) -> bool:
        """Whether the file is whole, and says all that is wanted but what overrides have left."""
        return self.file.damage is None and (self.in_file.controls, self.in_file.lost) == (wanted.controls, wanted.lost)

    @property
    def staying(self) -> Sequence[Control]:
        """The orders that file and copy hold whatever is written next: a damaged one is set aside first."""
        if self.file.damage is None:
            return self.in_file.controls
        return self.copy.saved.controls if self.copy.is_whole else []


class OrderStore:
    """What is kept of one policy's orders on the disk. Threads may read while one writes, with `exclusive`, which keeps
    other processes from it: by what it has read itself, for what could not be read is not overwritten.

    Raises:
        ArtifactError: when no room can be reserved for orders.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reserved: str | None = None  # why what was ordered is kept in the reserve
        self.damaged: str | None = None  # what was wrong with a file that was set aside
        self._copy_path = path.with_suffix(".copy")
        self._lock_path = Path(f"{path}.lock")
        _make_files(path, self._lock_path)
        self._reserve = Reserve(path.with_suffix(".reserve"))
        self._left_out: str | None = None  # what the reserve was told of the orders it had no room for

    def write(self, wanted: SavedControls, kept: Kept, is_countdown_due: bool = False) -> Kept:
        """To the file, with a damaged one set aside; where that cannot be, or a newer LoomRL wrote it, to the room that
        is reserved, what is not in the file. Returns what is kept now.

        Raises:
            ArtifactError: when neither takes it.
        """
        try:
            if kept.closed is not None:
                raise ArtifactError(kept.closed)
            if kept.file.damage is not None:
                self._set_aside(kept.file.damage)
            kept = self._write_both(wanted, kept)
        except ArtifactError as error:
            kept = self._write_reserve(wanted, kept, is_countdown_due)
            if self.reserved is None:
                log.error("what was ordered is kept in %s: %s", self._reserve.path, error)
            self.reserved = str(error)
            return kept
        return self._empty_reserve(kept)

    def renew(self, wanted: SavedControls, kept: Kept) -> Kept:
        """Where the file holds what is wanted: see to it that it is of this version, has a copy, and that nothing
        stands in the reserve."""
        if kept.closed is not None:
            return kept
        if kept.is_outdated:
            with suppress(ArtifactError):  # it says the same
                kept = self._write_both(wanted, kept)
        return self._empty_reserve(kept)

    def _empty_reserve(self, kept: Kept) -> Kept:
        """Where the file holds all that is to be kept; one that cannot be emptied is tried again, and `reserved` says
        so."""
        self.reserved, found = None, kept.reserve
        if found.is_newer:
            return kept
        try:
            if found.closed is not None:
                raise ArtifactError(found.closed)
            holds_some = bool(found.saved.controls) or found.saved.lost is not None or found.damage is not None
            if holds_some or self._reserve.has_failed:
                self._reserve.write(b"")
        except ArtifactError as error:
            self.reserved = f"the file holds it, too, for the reserve cannot be emptied: {error}"
            return kept
        return replace(kept, reserve=Found())

    def _write_both(self, wanted: SavedControls, kept: Kept) -> Kept:
        """The copy first: what the file holds, it holds. A damaged copy is kept under another name. With the file
        locked.
        """
        if kept.copy.damage is not None:
            with suppress(OSError):
                aside = _renamed(self._copy_path)
                log.error("%s is damaged; it is kept as %s", self._copy_path, aside.name)
        wanted.write(self._copy_path)
        wanted.write(self.path)
        written = Found(wanted, is_sealed=True)
        return replace(kept, file=written, copy=written)

    def _write_reserve(self, wanted: SavedControls, kept: Kept, is_countdown_due: bool) -> Kept:
        """What is not in the file. Where there is no room for all, less of what was replaced is named; then what is for
        all agents goes before what is for one, and new before old, and it says that some are missing.

        Raises:
            ArtifactError: when not all is kept.
        """
        if kept.reserve.closed is not None:
            raise ArtifactError(kept.reserve.closed)
        rest = [one for one in wanted.controls if one not in kept.staying]
        short = [_shortened(one, kept.staying) for one in rest]
        is_told = kept.reserve.saved.lost == wanted.lost and kept.reserve.saved.controls in (rest, short)
        if is_told and not is_countdown_due and self._reserve.holds_last:
            return kept
        try:
            return self._reserve_these(wanted, rest, kept)
        except TooLong:
            log.warning("%s: orders are kept without most of what they replaced", self._reserve.path)
        try:
            return self._reserve_these(wanted, short, kept)
        except TooLong:
            self._reserve_some(wanted, short, kept)
            raise

    def _reserve_these(self, wanted: SavedControls, controls: Sequence[Control], kept: Kept) -> Kept:
        reserved = wanted.model_copy(update={"controls": list(controls)})
        self._reserve.write(reserved.sealed())
        return replace(kept, reserve=Found(reserved))

    def _reserve_some(self, wanted: SavedControls, controls: Sequence[Control], kept: Kept) -> None:
        """As many as there is room for, if any, and that others are missing."""
        ranked = sorted(controls, key=lambda one: ("/" not in one.name, one.created), reverse=True)
        while ranked := ranked[: len(ranked) * 9 // 10]:
            num_missing = len(controls) - len(ranked)
            self._left_out = f"{self._reserve.path} had no room for {num_missing} orders: {_MISSING}"
            some = wanted.model_copy(update={"countdowns": {}, "lost": wanted.lost or self._left_out})
            with suppress(TooLong):
                self._reserve_these(some, ranked, kept)
                return

    def read(self) -> Kept:
        """What stands in the file, or in its copy where the file is not whole, and in the reserve."""
        file, copy, reserve = found_in(self.path), found_in(self._copy_path), found_in_reserve(self._reserve)
        if copy.is_there and not file.is_there:
            file = replace(file, damage=f"{self.path} is gone")
        if reserve.saved.lost is not None and reserve.saved.lost == self._left_out:  # by whom they are known
            reserve = replace(reserve, saved=reserve.saved.model_copy(update={"lost": None}))
        return Kept(file, copy, reserve)

    def _set_aside(self, damage: str) -> None:
        """Keep the damaged file under another name; with the file locked.

        Raises:
            ArtifactError: when it cannot be renamed.
        """
        try:
            kept = f"; it is kept as {_renamed(self.path).name}"
        except FileNotFoundError:
            kept = ""
        except OSError as error:
            raise ArtifactError(f"{damage}; it cannot be set aside: {error.strerror}") from error
        self.damaged = f"{damage}{kept}"
        log.error("%s", self.damaged)

    def look(self) -> object:
        """What changes with the files; another each time where the disk does not say."""
        try:
            return [_stamp_of(path) for path in (self.path, self._copy_path, self._reserve.path)]
        except OSError:
            return object()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other process writes the file.

        Raises:
            ArtifactError: when another one holds it for long, or it cannot be had.
        """
        lock = filelock.FileLock(self._lock_path, timeout=_LOCK_SECONDS)
        try:
            lock.acquire()
        except (filelock.Timeout, OSError) as error:
            raise ArtifactError(f"{self._lock_path} is not to be had: {error}; see who holds it") from error
        try:
            yield
        finally:
            lock.release()


def _joined(first: SavedControls, other: SavedControls) -> SavedControls:
    """What both hold; where they say of one thing, what the first does."""
    return SavedControls(
        controls=[*first.controls, *other.controls],
        countdowns={**other.countdowns, **first.countdowns},
        lost=first.lost or other.lost,
    )


def _stamp_of(path: Path) -> tuple[int, int] | None:
    """What changes with a file; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _renamed(path: Path) -> Path:
    """Where a damaged file is kept from now on."""
    aside = next(one for number in count(1) if not (one := Path(f"{path}.damaged-{number}")).exists())
    return path.rename(aside)


def _shortened(order: Control, in_file: Iterable[Control]) -> Control:
    """As it names the newest orders that it replaces, and those that still stand in the file."""
    if order.replaces is None:
        return order
    kept = {one.identity for one in in_file if one.name == order.name} | {*order.replaces[-_NUM_REPLACED_IN_RESERVE:]}
    return order.model_copy(update={"replaces": [one for one in order.replaces if one in kept]})


def _make_files(path: Path, lock_path: Path) -> None:
    """The folder, and the file that is locked: a full disk takes no new one later."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not lock_path.exists():
            lock_path.touch()
    except OSError as error:
        raise ArtifactError(f"cannot make {lock_path}: {error.strerror}; check LOOMRL_HOME") from error

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
from loomrl.serving.controls.order_file import DAMAGES, MAX_REASON, NewerFormat, SavedControls, found_in
from loomrl.storage.audit.reserve import Reserve
from loomrl.storage.loomdb.records import Control
from loomrl.system.plain import on_one_line

log = logging.getLogger(__name__)
_NUM_REPLACED_IN_RESERVE = 2  # where room is short, besides those that stand in the file
_LOCK_SECONDS = 10.0  # that another process may hold the file; what was ordered is in force meanwhile
_MISSING = "orders may be missing here"


@dataclass(frozen=True)
class Kept:
    """What was found when file, copy and reserve were read."""

    in_file: SavedControls  # or in its copy
    in_reserve: SavedControls | None  # None where it could not be read
    damage: str | None = None  # what is wrong with the file; it is set aside
    closed: str | None = None  # why the file is left alone
    reserve_closed: str | None = None  # and the reserve
    unread: str | None = None  # what the disk did not give
    unheard: str | None = None  # why the file, or the reserve, may hold what is not known here
    newly_lost: str | None = None  # of which damage left no whole text
    is_outdated: bool = False  # an earlier version wrote the file, or it has no whole copy

    @cached_property
    def orders(self) -> SavedControls:
        """What stands in the file and in the reserve together, which may be one order in several versions."""
        return _joined(self.in_file, self.in_reserve or SavedControls())

    @property
    def is_movable(self) -> bool:
        """Whether orders stand in the reserve that the file might take."""
        return self.closed is None and self.in_reserve is not None and bool(self.in_reserve.controls)

    def holds(self, wanted: SavedControls) -> bool:
        """Whether the file is whole, and says all that is wanted but what overrides have left."""
        return self.damage is None and (self.in_file.controls, self.in_file.lost) == (wanted.controls, wanted.lost)


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

    def write(self, wanted: SavedControls, kept: Kept, is_countdown_due: bool = False) -> Kept:
        """To the file, with a damaged one set aside; where that cannot be, or a newer LoomRL wrote it, to the room that
        is reserved, what is not in the file. Returns what is kept now.

        Raises:
            ArtifactError: when neither takes it.
        """
        try:
            if kept.closed is not None:
                raise ArtifactError(kept.closed)
            if kept.damage is not None:
                self._set_aside(kept.damage)
            self._write_both(wanted)
        except ArtifactError as error:
            kept = self._write_reserve(wanted, kept, is_countdown_due)
            if self.reserved is None:
                log.error("what was ordered is kept in %s: %s", self._reserve.path, error)
            self.reserved = str(error)
            return kept
        return self._empty_reserve(replace(kept, in_file=wanted, damage=None, is_outdated=False))

    def renew(self, wanted: SavedControls, kept: Kept) -> Kept:
        """Where the file holds what is wanted: see to it that it is of this version, has a copy, and that nothing
        stands in the reserve."""
        if kept.closed is not None:
            return kept
        if kept.is_outdated:
            with suppress(ArtifactError):  # it says the same
                self._write_both(wanted)
                kept = replace(kept, is_outdated=False)
        return self._empty_reserve(kept)

    def _empty_reserve(self, kept: Kept) -> Kept:
        """Where the file holds all that is to be kept; one that cannot be emptied is tried again, and `reserved` says
        so."""
        self.reserved = None
        if kept.reserve_closed is not None:
            return kept
        try:
            if kept.in_reserve is None:
                raise ArtifactError(kept.unread or f"{self._reserve.path} was not read")
            if kept.in_reserve.controls or kept.in_reserve.lost or self._reserve.has_lost:
                self._reserve.write(b"")
        except ArtifactError as error:
            self.reserved = f"the file holds it, too, for the reserve cannot be emptied: {error}"
            return kept
        return replace(kept, in_reserve=SavedControls())

    def _write_both(self, wanted: SavedControls) -> None:
        """The copy first: what the file holds, it holds. A damaged copy is kept under another name. With the file
        locked.
        """
        if found_in(self._copy_path).damage is not None:
            with suppress(OSError):
                aside = _renamed(self._copy_path)
                log.error("%s is damaged; it is kept as %s", self._copy_path, aside.name)
        wanted.write(self._copy_path)
        wanted.write(self.path)

    def _write_reserve(self, wanted: SavedControls, kept: Kept, is_countdown_due: bool) -> Kept:
        """What is not in the file. Where there is no room for all, less of what was replaced is named; then what is for
        all agents goes before what is for one, and new before old.

        Raises:
            ArtifactError: when not all is kept.
        """
        if kept.in_reserve is None:
            raise ArtifactError(kept.reserve_closed or kept.unread or f"{self._reserve.path} was not read")
        rest = [one for one in wanted.controls if one not in kept.in_file.controls]
        short = [_shortened(one, kept.in_file.controls) for one in rest]
        is_told = kept.in_reserve.lost == wanted.lost and kept.in_reserve.controls in (rest, short)
        if is_told and not is_countdown_due and self.reserved is not None and self._reserve.is_there:
            return kept
        try:
            return self._reserve_one(wanted, rest, kept)
        except ArtifactError:
            log.warning("%s: orders are kept without most of what they replaced", self._reserve.path)
        try:
            return self._reserve_one(wanted, short, kept)
        except ArtifactError:
            ranked = sorted(short, key=lambda one: ("/" not in one.name, one.created), reverse=True)
            while ranked := ranked[: len(ranked) * 9 // 10]:
                with suppress(ArtifactError):
                    self._reserve_one(wanted.model_copy(update={"countdowns": {}}), ranked, kept)
                    break
            raise

    def _reserve_one(self, wanted: SavedControls, controls: Sequence[Control], kept: Kept) -> Kept:
        reserved = wanted.model_copy(update={"controls": list(controls)})
        self._reserve.write(reserved.sealed())
        return replace(kept, in_reserve=reserved)

    def read(self) -> Kept:
        """What stands in the file, or in its copy where the file is not whole, and in the reserve."""
        kept = self._with_reserve(self._read_file())
        if kept.newly_lost is not None:
            kept = replace(kept, newly_lost=f"{on_one_line(kept.newly_lost)[:MAX_REASON]}: {_MISSING}")
        return kept

    def _read_file(self) -> Kept:
        found, copy = found_in(self.path), found_in(self._copy_path)
        if found.is_whole:
            is_outdated = not found.is_sealed or not copy.is_there or copy.damage is not None
            return Kept(found.saved, None, is_outdated=is_outdated)
        if not (found.is_there or copy.is_there):
            return Kept(found.saved, None)  # nothing was ordered yet
        closed = found.closed or copy.closed
        kept = Kept(
            found.saved,
            None,
            damage=found.damage if found.is_there else f"{self.path} is gone",
            closed=closed,
            unread=closed if found.is_unread or (copy.is_unread and not found.is_newer) else None,
        )
        if closed is not None and (found.is_newer or not copy.is_whole):
            kept = replace(kept, unheard=f"{closed}; {_MISSING}")
        elif not copy.is_whole:
            kept = replace(kept, newly_lost=f"{kept.damage}, and there is no whole copy of it")
        if found.is_newer:
            return kept  # what the copy says may be over
        return replace(kept, in_file=_joined(copy.saved, found.saved))  # the copy is written first

    def _with_reserve(self, kept: Kept) -> Kept:
        try:
            text = self._reserve.read()
            in_reserve = SavedControls.opened(text)[0] if text else SavedControls()
            if not text and kept.newly_lost is None and self._reserve.has_lost:
                kept = replace(kept, newly_lost=f"{self._reserve.path} is damaged")
        except ArtifactError as error:
            return replace(kept, unread=str(error), unheard=kept.unheard or f"{error}; {_MISSING}")
        except (NewerFormat, *DAMAGES) as error:  # the reserve is whole, for it has a digest of its own
            why = f"{self._reserve.path} is left alone, for this LoomRL cannot read it: {error}; use a newer one, or"
            closed = on_one_line(f"{why} remove it")[:MAX_REASON]
            return replace(kept, reserve_closed=closed, unheard=kept.unheard or f"{closed}; {_MISSING}")
        return replace(kept, in_reserve=in_reserve)

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
            return _stamp_of(self.path), _stamp_of(self._copy_path), self._reserve.stamp
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

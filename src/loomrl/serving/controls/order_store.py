"""Orders on the disk: the file, the copy beside it, and the room that is reserved for where neither can be written.

The copy is written first; both have a digest of their content. A file that is damaged is set aside, and written anew
from its copy and what else is known. One that a newer LoomRL wrote, or that cannot be read, is left alone, and orders
are kept in the reserve.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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


class OrderStore:
    """What is kept of one policy's orders. What `read` could not read, and where `write` wrote, its attributes say.

    One thread at a time reads, and one writes, with `exclusive`, which keeps other processes from it, and after it has
    read: what it could not read it does not overwrite.

    Raises:
        ArtifactError: when no room can be reserved for orders.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.in_file = SavedControls()  # what the file, or its copy, held when it was read
        self.reserved: str | None = None  # why what was ordered is kept in the reserve
        self.damaged: str | None = None  # what was wrong with a file that was set aside
        self.damage: str | None = None  # what is wrong with the file that is there
        self.unread: str | None = None  # what the disk did not give, the last time
        self.unheard: str | None = None  # why a file, or the reserve, may hold what is not known here
        self.lost: str | None = None  # what was lost to damage, until LoomDB has told what it knows
        self._told: str | None = None  # what the file, or the reserve, says of that
        self._settled: str | None = None  # what LoomDB has made up for
        self.is_outdated = False  # an earlier version wrote the file, or it has no whole copy
        self._closed: str | None = None  # why the file that is there is left alone
        self._in_reserve: SavedControls | None = None  # None where that is not known
        self._reserve_closed: str | None = None  # why it is left alone
        self._copy_path = path.with_suffix(".copy")
        self._lock_path = Path(f"{path}.lock")
        _make_files(path, self._lock_path)
        self._reserve = Reserve(path.with_suffix(".reserve"))

    @property
    def is_due(self) -> bool:
        """Whether the file should be written though all orders stand in it."""
        return self.damage is not None or self.lost != self._told

    def holds(self, wanted: SavedControls) -> bool:
        """Whether the file is whole, and says all that is wanted but what overrides have left."""
        return self.damage is None and (self.in_file.controls, self.in_file.lost) == (wanted.controls, wanted.lost)

    @property
    def has_orders_in_reserve(self) -> bool:
        """Whether some stand there that the file might take."""
        return self._closed is None and self._in_reserve is not None and bool(self._in_reserve.controls)

    def write(self, wanted: SavedControls) -> None:
        """To the file, with a damaged one set aside; where that cannot be, or a newer LoomRL wrote it, to the room that
        is reserved, what is not in the file.

        Raises:
            ArtifactError: when neither takes it.
        """
        try:
            if self._closed is not None:
                raise ArtifactError(self._closed)
            if self.damage is not None:
                self._set_aside(self.damage)
            self._write_both(wanted)
        except ArtifactError as error:
            self._write_reserve(wanted)
            if self.reserved is None:
                log.error("what was ordered is kept in %s: %s", self._reserve.path, error)
            self.reserved = str(error)
        else:
            self._empty_reserve()
        self._told = wanted.lost

    def renew(self, wanted: SavedControls) -> None:
        """Where the file holds what is wanted: see to it that it is of this version, has a copy, and that nothing
        stands in the reserve."""
        if self._closed is not None:
            return
        if self.is_outdated:
            with suppress(ArtifactError):  # it says the same
                self._write_both(wanted)
        self._empty_reserve()

    def _empty_reserve(self) -> None:
        """Where the file holds all that is to be kept; one that cannot be emptied is tried again, and `reserved` says
        so."""
        self.reserved = None
        if self._reserve_closed is not None:
            return
        try:
            if self._in_reserve is None:
                raise ArtifactError(self.unread or f"{self._reserve.path} was not read")
            if self._in_reserve.controls or self._in_reserve.lost or self._reserve.has_lost:
                self._reserve.write(b"")
                self._in_reserve = SavedControls()
        except ArtifactError as error:
            self.reserved = f"the file holds it, too, for the reserve cannot be emptied: {error}"

    def _write_both(self, wanted: SavedControls) -> None:
        """The copy first: what the file holds, it holds. A damaged copy is kept under another name. With the file
        locked.
        """
        if found_in(self._copy_path).damage is not None:
            with suppress(OSError):
                log.error("%s is damaged; it is kept as %s", self._copy_path, _renamed(self._copy_path).name)
        wanted.write(self._copy_path)
        wanted.write(self.path)

    def _write_reserve(self, wanted: SavedControls) -> None:
        """What is not in the file. Where there is no room for all, less of what was replaced is named; then what is for
        all agents goes before what is for one, and new before old.

        Raises:
            ArtifactError: when not all is kept.
        """
        if self._in_reserve is None:
            raise ArtifactError(self._reserve_closed or self.unread or f"{self._reserve.path} was not read")
        rest = [one for one in wanted.controls if one not in self.in_file.controls]
        short = [_shortened(one, self.in_file.controls) for one in rest]
        is_told = self._in_reserve.lost == wanted.lost and self._in_reserve.controls in (rest, short)
        if is_told and self.reserved is not None and self._reserve.is_there:
            return
        try:
            self._reserve_one(wanted, rest)
            return
        except ArtifactError:
            log.warning("%s: orders are kept without most of what they replaced", self._reserve.path)
        try:
            self._reserve_one(wanted, short)
        except ArtifactError:
            ranked = sorted(short, key=lambda one: ("/" not in one.name, one.created), reverse=True)
            while ranked := ranked[: len(ranked) * 9 // 10]:
                with suppress(ArtifactError):
                    self._reserve_one(wanted.model_copy(update={"countdowns": {}}), ranked)
                    break
            raise

    def _reserve_one(self, wanted: SavedControls, controls: Sequence[Control]) -> None:
        kept = wanted.model_copy(update={"controls": list(controls)})
        self._reserve.write(kept.sealed())
        self._in_reserve = kept

    def read(self) -> SavedControls:
        """What stands in the file, or in its copy where the file is not whole, and in the reserve. `unheard` and
        `lost` say what may be missing.
        """
        self.unread = self.unheard = None
        (self.in_file, damage), self._in_reserve = self._read_file(), self._read_reserve()
        reserved = SavedControls() if self._in_reserve is None else self._in_reserve
        if self._in_reserve is not None and not damage and self._reserve_has_lost():
            damage = f"{self._reserve.path} is damaged"
        told = self.in_file.lost or reserved.lost
        if self.unread is None and told != self._told:  # another process found it, or settled it
            self.lost = self._told = told
        if damage and (why := on_one_line(f"{damage}: {_MISSING}")[:MAX_REASON]) not in (self.lost, self._settled):
            log.error("%s", why)
            self.lost = why
        if not damage:
            self._settled = None
        return SavedControls(
            controls=[*self.in_file.controls, *reserved.controls],
            countdowns={**reserved.countdowns, **self.in_file.countdowns},
        )

    def settle(self) -> None:
        """LoomDB has told what it knows: what was lost is made up for."""
        self._settled, self.lost = self.lost or self._settled, None

    def _read_file(self) -> tuple[SavedControls, str | None]:
        """What it holds, and what is wrong where that is damaged, and its copy, too."""
        found = found_in(self.path)
        if found.is_whole:
            self.damage = self._closed = None
            copy = found_in(self._copy_path)
            self.is_outdated = not found.is_sealed or not copy.is_there or copy.damage is not None
            return found.saved, None
        copy = found_in(self._copy_path)
        self._closed = found.closed or copy.closed
        self.damage, self.is_outdated = found.damage, False
        if not (found.is_there or copy.is_there):
            return found.saved, None  # nothing was ordered yet
        if not found.is_there:
            self.damage = f"{self.path} is gone"
        if found.is_unread or (copy.is_unread and not found.is_newer):
            self.unread = self._closed
        damage = None
        if self._closed is not None and (found.is_newer or not copy.is_whole):
            self.unheard = f"{self._closed}; {_MISSING}"
        elif not copy.is_whole:
            damage = f"{self.damage}, and there is no whole copy of it"
        if found.is_newer:
            return found.saved, None  # what the copy says may be over
        return SavedControls(
            controls=[*found.saved.controls, *copy.saved.controls],
            countdowns={**found.saved.countdowns, **copy.saved.countdowns},
            lost=found.saved.lost or copy.saved.lost,
        ), damage

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
        self.damaged, self.damage = f"{damage}{kept}", None
        log.error("%s", self.damaged)

    def _read_reserve(self) -> SavedControls | None:
        self._reserve_closed = None
        try:
            text = self._reserve.read()
            return SavedControls.opened(text)[0] if text else SavedControls()
        except ArtifactError as error:
            self.unread = str(error)
            self.unheard = self.unheard or f"{error}; {_MISSING}"
        except (NewerFormat, *DAMAGES) as error:  # the reserve is whole, for it has a digest of its own
            why = f"{self._reserve.path} is left alone, for this LoomRL cannot read it: {error}; use a newer one, or"
            self._reserve_closed = on_one_line(f"{why} remove it")[:MAX_REASON]
            self.unheard = self.unheard or f"{self._reserve_closed}; {_MISSING}"
        return None

    def _reserve_has_lost(self) -> bool:
        try:
            return self._reserve.has_lost
        except ArtifactError:  # it was read just now
            return False

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

"""The guardian's process: follows the audit chains, gathers the evidence, and says when it suffices.

Only `loomrl.serving.guardian.guardian` starts it. Each line on its standard input is an object with one or more of

- `follow`: the folders of the chains to follow from then on,
- `quarantined`: versions that are out of service; others that once triggered begin anew,
- `kept`: a version whose trigger is on the disk, as quarantine; until then no evidence is kept that knows of it,
- `forget`: versions that begin anew,
- `watch`: what is known of versions that it asked for; null for one that is not loaded,
- `end`: it takes what was written last, and ends.

Each line on its standard output is an object with `wanted` (a version it must know), `trigger`, or `shown` (all
monitors); an empty one says that it is at work.
"""

import gc
import logging
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock
from pydantic import Field, ValidationError

from loomrl.errors import ArtifactError
from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.exchange import EvidenceExchange
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.sharing import Shared
from loomrl.serving.guardian.stream import STATE, Stream, StreamState
from loomrl.serving.guardian.watch import Watch
from loomrl.storage.audit.following import ChainPosition, Tail
from loomrl.system.files import write_atomic
from loomrl.system.home import home, inside
from loomrl.system.lifetime import follow_parent
from loomrl.system.pipes import LineReader
from loomrl.system.schema import Document
from loomrl.types import Json

log = logging.getLogger(__name__)
_KINDS = ("decision", "decisions", "feedback", "unanswered")
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.01  # seconds before another look; at 1,000 decisions a second ten are made
_SHOW_SECONDS = 0.5
_SAVE_SECONDS = 5.0
_OFFER_SECONDS = 1.0  # between two exchanges with the other servers
_END_SECONDS = 5.0  # for the last one
_NICENESS = 5  # behind who answers, before who only compares
_GARBAGE = 50_000  # objects between two searches for cycles: records have none


class _Kept(Document):
    """The guardian's file: the evidence, and how far each chain was read for it."""

    positions: dict[str, ChainPosition] = Field(default_factory=dict)  # chain -> position
    stream: dict[str, Any] = Field(default_factory=dict)  # a StreamState


class Watcher:
    """Feeds the monitors of one policy with the new records of its audit chains."""

    def __init__(self, policy: str, name: str, hearing: int) -> None:
        """`hearing` is the file descriptor that the server's messages are read from."""
        self._policy, self._hearing = policy, LineReader(hearing)
        self._path = inside("monitors", policy, f"{name}.json")
        self._positions, state = _read(self._path)
        self._stream = Stream(self._watch, state, is_shared=True)
        self._merge_error = ""  # the last one
        self._exchange = EvidenceExchange(policy, f"{_identity()}/{name}")
        self._offered = time.monotonic()
        self._counts: dict[str, int] = {}  # version -> records of it, when it was last offered
        self._tails: dict[str, Tail] = {}
        self._folders: list[Path] = []
        self._watches: dict[str, Watch | None] = {}
        self._messages = deque[Json]()  # of the server, that are not carried out yet
        self._unkept: set[str] = set()  # versions that triggered and are not known to be in quarantine on the disk
        self._suspected = {one.source for one in self._stream.suspicions}  # of which the server has been told
        self._is_ending = False  # whether the server has told this process to end
        self._is_shown, self._is_saved = False, True  # whether nothing came since
        self._shown = self._saved = time.monotonic()

    def run(self) -> None:
        """Watch the chains until the server says to end, or its messages end; then save all evidence.

        An error while records are looked at is logged, and watching goes on behind them.

        Raises:
            OSError: when the evidence cannot be written, or the server does not read any more.
        """
        _send({})
        self._exchange.start()
        pause = 0.0
        while not (self._is_ending or self._hearing.has_ended):
            self._read_server(pause)
            try:
                self._carry_out()
                pause = 0.0 if self._look() else min(max(2 * pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            except Exception:  # a guardian that dies of one record would protect nobody
                log.exception("watching %s failed; it goes on behind it", self._policy)
            self._do_what_is_due()
        self._exchange.offer(self._stream.evidence_to_share())
        while not self._hearing.has_ended and self._look():
            pass
        while not self._hearing.has_ended and self._unkept:
            self._read_server(None)
            self._carry_out()
        self._save()
        self._show()
        self._exchange.stop(_END_SECONDS)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if now - self._shown >= _SHOW_SECONDS:
            self._show()
        if now - self._offered >= _OFFER_SECONDS:
            self._exchange.offer(self._changed())
            self._offered = now
        if (shared := self._exchange.take_found()) is not None:
            self._merge(shared)
        if now - self._saved >= _SAVE_SECONDS and not self._is_saved:
            self._save()

    def _merge(self, shared: Shared) -> None:
        """Judge by what all servers know; a row that nobody can read ends no guardian."""
        try:
            self._report(self._stream.merge(shared))
        except Exception as error:
            if repr(error) != self._merge_error:
                log.exception("what other servers shared about %s is of no use: it is judged without", self._policy)
            self._merge_error = repr(error)
            self._stream.judge_alone()

    # --- what the server says -----------------------------------------------------------------------------------

    def _read_server(self, seconds: float | None) -> None:
        """Wait at most so many seconds for messages of the server, without a limit for None, and queue them."""
        self._messages.extend(map(orjson.loads, self._hearing.read(seconds)))

    def _carry_out(self) -> None:
        while self._messages:
            told = self._messages.popleft()
            if "quarantined" in told:
                self._forget([one for one in self._stream.refuted if one not in told["quarantined"]])
            if "follow" in told:
                self._folders = [Path(folder) for folder in told["follow"]]
            if "kept" in told:
                self._unkept.discard(told["kept"])
                self._save()
            self._forget(told.get("forget", ()))
            self._is_ending |= "end" in told

    def _forget(self, versions: Sequence[str]) -> None:
        for version in versions:
            self._stream.forget(version)
            self._exchange.forget(version)
            self._watches.pop(version, None)
            self._unkept.discard(version)
            self._suspected = {source for source in self._suspected if source[0] != version}
            self._save()

    def _watch(self, version: str) -> Watch | None:
        """What the server knows of a version; it is asked for once, and until the next look if it knows nothing."""
        if version not in self._watches:
            _send({"wanted": version})
            while not (answers := [told for told in self._messages if "watch" in told]) and not self._hearing.has_ended:
                self._read_server(None)
            for told in answers:
                self._messages.remove(told)
                known = told["watch"].items()
                self._watches |= {name: None if one is None else Watch.read(one) for name, one in known}
        return self._watches.get(version)

    # --- what is on record --------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Take what the chains gained; whether there was anything."""
        self._watches = {version: watch for version, watch in self._watches.items() if watch is not None}
        has_gained = False
        for folder in self._folders:
            if folder.name not in self._tails:
                self._tails[folder.name] = Tail(folder, self._positions.get(folder.name, ChainPosition()))
            if records := self._tails[folder.name].read(_KINDS):
                has_gained = True
                self._process(records)
        return has_gained

    def _process(self, records: list[Json]) -> None:
        self._is_shown = self._is_saved = False
        self._report(self._stream.process(records))

    def _report(self, triggers: Sequence[Trigger]) -> None:
        for one in self._stream.suspicions:
            if one.source not in self._suspected:
                self._suspected.add(one.source)
                _send({"suspicion": one.to_json()})
        for trigger in triggers:
            self._unkept.add(trigger.version)
            _send({"trigger": trigger.to_json()})
            self._show()

    def _changed(self) -> list[VersionEvidence]:
        """The evidence about versions with new records since the last call."""
        found = [one for one in self._stream.evidence_to_share() if self._counts.get(one.version) != one.num_seen]
        self._counts |= {one.version: one.num_seen for one in found}
        return found

    def _show(self) -> None:
        _send({} if self._is_shown else {"shown": self._stream.describe()})
        self._shown, self._is_shown = time.monotonic(), True

    def _save(self) -> None:
        """Evidence and positions of one moment; a restart goes on from there, and finds unkept triggers again.

        Not synced: that would keep decisions waiting to be watched, and what a power failure damages the log still has.
        For the same reason a disk that takes nothing stops no watching: it is tried again.
        """
        if self._unkept:
            return
        self._positions |= {name: tail.position for name, tail in self._tails.items()}
        kept = _Kept(positions=self._positions, stream=STATE.dump_python(self._stream.state(), mode="json"))
        temporary = self._path.with_suffix(".new")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(kept.to_bytes())
            temporary.replace(self._path)
            self._is_saved = True
        except OSError as error:
            log.error(
                "the evidence about %s is not kept: %s: %s; check the disk", self._policy, self._path, error.strerror
            )
            self._is_saved = False
        self._saved = time.monotonic()


def _identity() -> str:
    """What tells servers of this home from those of other homes, in LoomDB; made once."""
    path = home() / "monitors" / "server.id"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            write_atomic(path, secrets.token_hex(8).encode())
    return path.read_text()


def _send(told: Json) -> None:
    sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
    sys.stdout.buffer.flush()


def _read(path: Path) -> tuple[dict[str, ChainPosition], StreamState]:
    """What an earlier process kept; nothing where that cannot be read: the log has all of it."""
    try:
        kept = _Kept.read(path) if path.is_file() else _Kept()
        return kept.positions, STATE.validate_python(kept.stream)
    except ValidationError:
        log.warning("%s is from another version of LoomRL: evidence is gathered anew from the audit log", path)
        return {}, StreamState()
    except ArtifactError as error:
        log.error("%s: evidence is gathered anew from the audit log: %s", path, error)
        return {}, StreamState()


def main(arguments: list[str]) -> None:
    """Watch until the input says so, or ends. The arguments are the policy, the name of the file it keeps its evidence
    in, and the process id of who started it.
    """
    policy, name, parent = arguments
    follow_parent(int(parent))
    os.nice(_NICENESS)
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    Watcher(policy, name, sys.stdin.fileno()).run()


if __name__ == "__main__":
    main(sys.argv[1:])

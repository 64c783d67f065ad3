"""What promotion writes into LoomDB: deployments, approvals, events and the edges between them.

Everything is append-only, and writing the same thing twice leaves it there once, so that an interrupted run can be
finished by the next one.
"""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.loomdb.records import Event
from loomrl.storage.registry import CHAMPION
from loomrl.storage.run_record import now
from loomrl.system.schema import Document
from loomrl.types import Json

MOVES = ("promotion", "rollback")  # kinds of LoomDB's events
REVOCATION = "revocation"
_Number = Annotated[int, Field(ge=0, lt=2**53)]  # as JSON keeps it


class Move(Document):
    """One move of the champion alias, written to the version's tags before and to LoomDB after it happened."""

    kind: Literal["promotion", "rollback"]
    policy: str
    version: str
    before: str | None  # the champion it replaced
    run_id: str  # the run that decided, or the id of a command by hand
    reason: str
    person: str | None = None
    time: str  # ISO 8601, UTC
    number: _Number = 0  # of the signed statement; 0: from before there were any


class _Revocation(Document):
    """What is recorded when nothing counts any more that was signed under a lower number."""

    policy: str
    version: str
    number: _Number
    time: str


def node(policy: str, version: str) -> str:
    """The name of a version in LoomDB's lineage: `policy:POLICY@VERSION`."""
    return f"policy:{policy}@{version}"


def record_move(db: LoomDB, move: Move) -> None:
    """Record that the champion alias moved: edges, a deployment and an event. Recording it again changes nothing.

    A process that dies in here, or an error, leaves a part, which the next call with the same move completes.

    Raises:
        ServiceError: when LoomDB cannot be reached or fails.
    """
    if any(Move.model_validate(event) == move for event in moves(db, move.policy)):
        return
    name = node(move.policy, move.version)
    db.link(f"run:{move.run_id}", "rolled back to" if move.kind == "rollback" else "promoted", name)
    if move.before:
        db.link(name, "replaced", node(move.policy, move.before))
    if not _is_deployed(db, move):
        db.record_deployment(move.policy, move.version, CHAMPION, move.run_id, move.reason)
    db.record_event(move.kind, move.to_json())  # last: its presence says that all of it was written


def _is_deployed(db: LoomDB, move: Move) -> bool:
    """Whether this very move's deployment is there: a run moves a version once, a command by hand has its own id."""
    key = (move.version, CHAMPION, move.run_id, move.reason)
    return any((one.version, one.role, one.run_id, one.reason) == key for one in db.deployments(move.policy))


def record_revocation(db: LoomDB, policy: str, version: str, number: int) -> None:
    """Append an event: from now on nothing counts that was signed under a number below `number`.

    `version` is the champion; "" where there never was one.

    Raises:
        ServiceError: when LoomDB cannot be reached or fails; nothing is recorded then.
    """
    revocation = _Revocation(policy=policy, version=version, number=number, time=now())
    db.record_event(REVOCATION, revocation.to_json())


def newest(db: LoomDB, policy: str) -> Json | None:
    """The data of the recorded move or revocation with the highest number; None where none is recorded.

    The number decides, not the time: a rollback may be recorded late. Where all are from before there were numbers, it
    is the one that was recorded last.

    Raises:
        ServiceError: when LoomDB cannot be reached or fails, or one of them was changed by hand (`DamagedRow`).
    """
    events = db.newest_events(policy, (*MOVES, REVOCATION))
    return max((_read(event) for event in events), key=number_of, default=None)


def number_of(event: Json | None) -> int:
    """The number of a move or revocation; 0 for None, and for those from before there were numbers."""
    return 0 if event is None else int(event.get("number", 0))


def _read(event: Event) -> Json:
    """Its data, in which nothing is missing."""
    try:
        (_Revocation if event.kind == REVOCATION else Move).model_validate(event.data)
    except ValidationError as error:
        raise DamagedRow(f"a row of LoomDB is no {event.kind}, it was changed: {error}") from error
    return event.data


def newest_number(db: LoomDB, policy: str) -> int:
    """The highest number of a policy's recorded moves and revocations; 0 where there are none.

    Raises:
        ServiceError: when LoomDB cannot be reached or fails.
    """
    return number_of(newest(db, policy))


def moves(db: LoomDB, policy: str) -> list[Json]:
    """Every recorded move of a policy's champion alias as the JSON of a `Move`, oldest first; empty without any.

    Raises:
        ServiceError: when LoomDB cannot be reached or fails, or one of them was changed by hand (`DamagedRow`).
    """
    events = [event for kind in MOVES for event in db.events(kind) if event.data.get("policy") == policy]
    return sorted(map(_read, events), key=lambda data: str(data["time"]))

"""What promotion writes into LoomDB: deployments, approvals, events and the edges between them.

Everything is append-only, and writing the same thing twice leaves it there once, so that an interrupted run can be
finished by the next one.
"""

from typing import Literal

from loomrl.loomdb.database import LoomDB
from loomrl.registry import CHAMPION
from loomrl.schema import Document
from loomrl.types import Json


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
    number: int = 0  # of the signed statement; 0: from before there were any


def node(policy: str, version: str) -> str:
    """A version as LoomDB names it."""
    return f"policy:{policy}@{version}"


def record_move(db: LoomDB, move: Move) -> None:
    """Record that the champion alias moved. A process that dies in here leaves what the next call completes."""
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


def newest_number(db: LoomDB, policy: str) -> int:
    """Of the recorded moves; 0 where there are none."""
    return max((Move.model_validate(event).number for event in moves(db, policy)), default=0)


def moves(db: LoomDB, policy: str) -> list[Json]:
    """Every recorded move of a policy's champion alias, oldest first."""
    found = [event.data for kind in ("promotion", "rollback") for event in db.events(kind)]
    return sorted((data for data in found if data["policy"] == policy), key=lambda data: str(data["time"]))

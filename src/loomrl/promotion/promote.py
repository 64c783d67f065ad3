"""Carry out a decision: move the aliases, record the deployment; take it back with `rollback`.

A move is announced in a tag on the version before the alias moves, and the tag is removed once LoomDB holds the
move. A signed statement on the version says by whom and why the alias was moved: without it no server follows. The
alias `champion` moves first and in one step. A process that dies in between leaves either the old champion (nothing
happened) or the new champion with its tag, and `settle`, which every later move calls, finishes the rest.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError, GateRefused, LoomRLError, ServiceError
from loomrl.promotion.rules import PROMOTED, PROMOTED_OVER, REFUSED, ROLLED_BACK, WAITING
from loomrl.storage import ledger
from loomrl.storage.ledger import Move
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, PolicyVersion, Registry
from loomrl.storage.registry.statements import (
    ChampionStatement,
    check_registered,
    if_valid,
    newest_number,
    state_champion,
    was_champion,
)
from loomrl.storage.run_record import new_run_id, now
from loomrl.system.files import write_atomic
from loomrl.system.home import inside
from loomrl.system.locks import hold_lock
from loomrl.system.schema import Document
from loomrl.types import PromotionDecision

log = logging.getLogger(__name__)
MOVE = "loomrl.move"  # a move that is under way, as JSON
CHAMPION_SINCE = "loomrl.champion_since"  # when the version last became champion
REPLACED = "loomrl.replaced"  # the version it became champion over, or "none"
_WAIT_SECONDS = 5  # for LoomDB, before an alias moves
DECISION, REASON = "loomrl.decision", "loomrl.reason"


class PromotionOutcome(Document):
    """What carrying out a decision or a rollback did, in a sentence, and where the policy's aliases stand: alias ->
    version.

    `recorded` is False where the aliases moved and LoomDB could not be reached: the next command records it.
    """

    policy: str
    version: str
    aliases: dict[str, str]
    message: str
    recorded: bool = True  # False: the aliases moved, LoomDB could not be reached; the next command records it


@contextmanager
def exclusive(policy: str, timeout: float = 60.0) -> Iterator[None]:
    """Hold a policy's aliases alone on this machine while they are judged and moved: seconds, never a whole run.

    Raises:
        ServiceError: when somebody else still holds them after `timeout` seconds; names the process.
    """
    path = inside(f"policy-{policy}.lock")
    holder = path.with_suffix(".holder")

    def refused() -> ServiceError:
        process = holder.read_text() if holder.is_file() else "unknown"
        return ServiceError(
            f"{policy}: process {process} on this machine has been moving its aliases for more than {timeout:.0f} s "
            f"(it holds {path}); wait for it, or end that process: its move is finished by the next command"
        )

    with hold_lock(path, timeout, refused):
        write_atomic(holder, str(os.getpid()).encode())
        yield


def champion_of(registry: Registry, policy: str) -> PolicyVersion | None:
    """The champion; None before the first.

    Raises:
        GateRefused: when there was one and the alias is gone: a version would be judged as if there were nobody to
            compare it with.
        ServiceError: when the registry or LoomDB cannot be reached.
    """
    if found := registry.get(policy, CHAMPION):
        return found
    with LoomDB.open() as db:
        last = _last_champion(registry, db, policy)
    if not last:
        return None
    back = f"`loomrl policy rollback {policy} --to {last} --by NAME --reason TEXT`"
    raise GateRefused(
        f"{policy}: the alias {CHAMPION} is gone from the registry, and version {last} was champion last: put "
        f"it back with {back}; `loomrl policy list {policy}` shows what there is; where no former champion is left, "
        f"`loomrl policy promote {policy} VERSION --by NAME --reason TEXT` makes one that is compared with nobody"
    )


def _last_champion(registry: Registry, db: LoomDB, policy: str) -> str:
    """The version that the newest move is about, whatever the alias says; "" where there never was one.

    What LoomDB knows counts, and statements, but for those whose move a tag announces, for it is still to come. Of
    promotions none counts that LoomDB does not know, where it knows any move: it never happened.
    """
    recorded = ledger.newest(db, policy)
    found = [] if recorded is None else [(ledger.number_of(recorded), str(recorded["version"]))]
    for version in registry.versions(policy):
        statement = if_valid(ChampionStatement, version)
        if statement is None or (recorded is not None and statement.kind == "promotion"):
            continue
        if _announced(registry, version) is None:
            found.append((statement.number, version.version))
    return max(found, key=lambda one: one[0], default=(0, ""))[1]


def make_challenger(registry: Registry, version: PolicyVersion) -> None:
    """Let the alias `challenger` name a version, unless it is champion already.

    Raises:
        ServiceError: when the registry cannot be reached.
    """
    if registry.aliases(version.policy).get(CHAMPION) != version.version:
        registry.set_aliases(version.policy, {CHALLENGER: version.version})


def apply(
    decision: PromotionDecision,
    run_id: str,
    registry: Registry | None = None,
    db: LoomDB | None = None,
) -> PromotionOutcome:
    """Carry out a decision; doing so twice changes nothing more. Call it under `exclusive`.

    Raises:
        GateRefused: when the champion, or the version's files, changed since the decision was taken.
        ConfigError: when the version is not registered.
        ServiceError: when registry or LoomDB fail; nothing is half done that the next call does not finish.
    """
    registry, db = registry or Registry(), db or LoomDB.open()
    settle(decision.policy, registry, db)
    version = registry.require(decision.policy, decision.version)
    if decision.decision == PROMOTED:
        return _promote(decision, version, run_id, registry, db)
    if decision.decision == REFUSED:
        return refuse(decision, version, run_id, registry, db)
    if decision.decision == WAITING:
        db.request_approval(run_id, decision.policy, decision.version)
        return _outcome(registry, version, f"version {version.version} waits for approval of run {run_id}")
    _drop_challenger(registry, version)
    return _outcome(registry, version, f"version {version.version} stays champion")


def _promote(
    decision: PromotionDecision, version: PolicyVersion, run_id: str, registry: Registry, db: LoomDB
) -> PromotionOutcome:
    aliases = registry.aliases(decision.policy)
    champion = aliases.get(CHAMPION)
    if decision.sums_sha256 not in ("", version.sums_sha256):
        raise GateRefused(
            f"{decision.policy}: the files of version {version.version} are others than those that were judged; "
            "restore MLflow from a backup, and run the life cycle again"
        )
    if champion == version.version:
        _drop_challenger(registry, version)
        return _outcome(registry, version, f"version {version.version} is champion already")
    if champion != decision.champion_before:
        raise GateRefused(
            f"{decision.policy}: the champion changed from {decision.champion_before or 'none'} to "
            f"{champion or 'none'} since version {version.version} was judged; run the life cycle again"
        )
    move = Move(
        kind="promotion",
        policy=decision.policy,
        version=version.version,
        before=champion,
        run_id=run_id,
        reason="; ".join(decision.reasons),
        person=decision.approved_by,
        time=now(),
    )
    over = registry.require(decision.policy, champion).digest if champion else "none"
    registry.set_tag(version, PROMOTED_OVER, over)
    move = _move(registry, version, move, db)
    registry.set_tag(version, DECISION, PROMOTED)
    registry.set_tag(version, REASON, _short(move.reason))
    return _recorded(registry, db, version, move, f"version {version.version} is champion")


def refuse(
    decision: PromotionDecision, version: PolicyVersion, run_id: str, registry: Registry, db: LoomDB
) -> PromotionOutcome:
    """Mark a version as refused, with the reason; the champion stays, also where it is the one refused.

    Raises:
        ServiceError: when registry or LoomDB fail; to call it again does what is left.
    """
    reason = "; ".join(decision.reasons)
    is_champion = registry.aliases(version.policy).get(CHAMPION) == version.version
    if not is_champion:  # a champion's tags say how it became champion
        registry.set_tag(version, DECISION, REFUSED)
        registry.set_tag(version, REASON, _short(reason))
    _drop_challenger(registry, version)
    db.link(f"run:{run_id}", "refused", ledger.node(version.policy, version.version))
    db.record_event(
        "refusal", {"policy": version.policy, "version": version.version, "run_id": run_id, "reason": reason}
    )
    if is_champion:
        still = f"version {version.version} is champion but meets the rules no longer: {reason}"
        return _outcome(registry, version, f"{still}; go back with `loomrl policy rollback {version.policy}`")
    return _outcome(registry, version, f"version {version.version} was refused: {reason}")


def rollback(
    policy: str,
    reason: str,
    person: str,
    to: str | None = None,
    run_id: str | None = None,
    registry: Registry | None = None,
    db: LoomDB | None = None,
) -> PromotionOutcome:
    """Make an earlier champion champion again: the alias `previous`, or version `to`.

    Needs only the registry: where LoomDB cannot be reached the aliases move all the same, the outcome has `recorded`
    False, and the next command that moves an alias writes the record. The version taken back is marked, so that no life
    cycle promotes it again by itself. `previous` then names the champion before the one restored, so a second rollback
    goes further back, never to what was taken back.

    Raises:
        ConfigError: when there is nothing to go back to, or `to` never was champion.
        ArtifactError: when the files of the version to restore are not what was registered under its number.
        ServiceError: when the registry fails; the next command finishes a move that had begun.
    """
    registry = registry or Registry()
    champion = registry.get(policy, CHAMPION)
    if champion and (interrupted := _announced(registry, champion)):
        _mark(registry, champion, interrupted)  # only now `previous` names the champion before it
    target = _rollback_target(registry, policy, to)
    before = champion.version if champion else None
    _check_files(registry, target)  # nothing that cannot be verified becomes champion
    move = Move(
        kind="rollback",
        policy=policy,
        version=target.version,
        before=before,
        run_id=run_id or f"by-hand-{new_run_id()}",
        reason=reason,
        person=person,
        time=now(),
    )
    move = _move(registry, target, move, db)
    taken = f", version {before} was taken back" if before else ""
    message = f"version {target.version} is champion again{taken}: {reason}"
    return _recorded(registry, db, target, move, message)


def _check_files(registry: Registry, version: PolicyVersion) -> None:
    with tempfile.TemporaryDirectory(prefix="loomrl-check-") as temporary:
        check_registered(version, registry.download(version, Path(temporary) / "files"))


def _rollback_target(registry: Registry, policy: str, to: str | None) -> PolicyVersion:
    aliases = registry.aliases(policy)
    if to is None and PREVIOUS not in aliases:
        raise ConfigError(
            f"{policy} has no previous champion to go back to; versions that were champion: "
            f"{_champions(registry, policy)}; name one with --to"
        )
    target = registry.require(policy, to or PREVIOUS)
    if target.version == aliases.get(CHAMPION):
        raise ConfigError(f"{policy}: version {target.version} is the champion already; name another with --to")
    if CHAMPION_SINCE not in target.tags or not was_champion(registry, target):
        raise ConfigError(
            f"{policy}: version {target.version} never was champion; versions that were: "
            f"{_champions(registry, policy)}; `loomrl policy promote {policy} {target.version}` judges it by the rules"
        )
    return target


def _champions(registry: Registry, policy: str) -> str:
    return ", ".join(one.version for one in registry.versions(policy) if CHAMPION_SINCE in one.tags) or "none"


def _champion_before(registry: Registry, version: PolicyVersion, without: str | None = None) -> str | None:
    """The champion `version` replaced, or the one before that, skipping what was taken back, or never was champion."""
    seen = {version.version}
    earlier = version.tags.get(REPLACED, "none")
    while earlier != "none" and earlier not in seen:
        seen.add(earlier)
        found = registry.get(version.policy, earlier)
        if found is None:
            return None
        if ROLLED_BACK not in found.tags and earlier != without and was_champion(registry, found):
            return earlier
        earlier = found.tags.get(REPLACED, "none")
    return None


# --- moving, and finishing what was interrupted -----------------------------------------------------------------


def settle(policy: str, registry: Registry, db: LoomDB) -> list[str]:
    """Finish every move whose process died after the alias moved and before LoomDB held it.

    Returns a sentence for each move that was finished. Call it under `exclusive`.

    Raises:
        ServiceError: when registry or LoomDB fail; the next call does what is left.
    """
    champion = registry.aliases(policy).get(CHAMPION)
    finished, never_moved = [], []
    for version in registry.versions(policy):
        move = _announced(registry, version)
        if move is None:
            continue
        if version.version == champion:
            _mark(registry, version, move)
        elif version.tags.get(CHAMPION_SINCE, "") < move.time:
            never_moved.append(version)  # the next decision stands for itself
            continue
        ledger.record_move(db, move)
        registry.delete_tag(version, MOVE)
        finished.append(f"finished the interrupted {move.kind} of version {version.version}")
    for version in never_moved:
        _revoke(registry, db, version)
        registry.delete_tag(version, MOVE)
    return finished


def _revoke(registry: Registry, db: LoomDB, version: PolicyVersion) -> None:
    """Make void what was signed of a promotion that never happened: whoever kept it could move the alias by hand later.

    A newer number voids it, with which the champion that stays is stated again. Nothing is deleted before LoomDB holds
    that number.
    """
    statement = if_valid(ChampionStatement, version)
    if statement is None:
        return
    if statement.kind == "promotion" and statement.number > ledger.newest_number(db, version.policy):
        staying = _last_champion(registry, db, version.policy)
        _state_again(registry, staying, statement)
        ledger.record_revocation(db, version.policy, staying, newest_number(registry, version.policy))
    registry.delete_tag(version, ChampionStatement.TAG)


def _state_again(registry: Registry, champion: str, void: ChampionStatement) -> None:
    """Sign that a version is champion under the newest number: in the same words, or in new ones where its statement is
    gone. Where there is no such version, or its files are others, nothing is signed."""
    version = registry.get(void.policy, champion) if champion else None
    if version is None:
        return
    newest = newest_number(registry, void.policy)
    known = if_valid(ChampionStatement, version)
    if known is not None:
        if known.number < newest:  # else a process died when it had stated it
            known.model_copy(update={"number": newest + 1}).sign(registry, version)
        return
    try:
        _check_files(registry, version)
    except ArtifactError as error:
        log.error("%s@%s: no server will follow the champion: %s", version.policy, version.version, error)
        return
    state_champion(
        registry,
        version,
        number=newest + 1,
        kind=ledger.REVOCATION,
        before=None,
        previous=_champion_before(registry, version),
        run_id=void.run_id,
        reason=f"version {void.version} never took over",
        person=None,
        time=now(),
    )


def _move(registry: Registry, version: PolicyVersion, move: Move, db: LoomDB | None) -> Move:
    """Sign, move, mark; the move with its number."""
    move = move.model_copy(update={"number": 1 + max(newest_number(registry, move.policy), _recorded_number(db, move))})
    registry.set_tag(version, MOVE, json.dumps(move.to_json()))
    previous = move.before if move.kind == "promotion" else _champion_before(registry, version, without=move.before)
    state_champion(registry, version, previous=previous, **move.model_dump(exclude={"policy", "version"}))
    registry.set_aliases(version.policy, {CHAMPION: version.version})
    _mark(registry, version, move)
    return move


def _recorded_number(db: LoomDB | None, move: Move) -> int:
    """Of the newest move that LoomDB knows; where it does not answer soon, the registry's statements count alone."""
    try:
        if db is not None:
            return ledger.newest_number(db, move.policy)
        with LoomDB.open(wait_seconds=_WAIT_SECONDS) as opened:
            return ledger.newest_number(opened, move.policy)
    except LoomRLError:
        return 0


def _mark(registry: Registry, version: PolicyVersion, move: Move) -> None:
    """What follows from the champion alias having moved, in the registry: a rollback reads only this."""
    registry.set_tag(version, CHAMPION_SINCE, move.time)
    registry.delete_tag(version, ROLLED_BACK)
    if move.kind == "promotion":
        registry.set_tag(version, REPLACED, move.before or "none")
        previous = move.before
    else:
        if move.before:
            taken_back = registry.require(move.policy, move.before)
            registry.set_tag(taken_back, ROLLED_BACK, _short(f"{move.reason}, by {move.person}, {move.time}"))
        previous = _champion_before(registry, version)
    moves: dict[str, str | None] = {PREVIOUS: previous}
    if registry.aliases(version.policy).get(CHALLENGER) == version.version:
        moves[CHALLENGER] = None
    registry.set_aliases(version.policy, moves)


def _announced(registry: Registry, version: PolicyVersion) -> Move | None:
    """The move a version's tag announces, as far as a signed statement bears it out; from before there were any, the
    tag alone."""
    if MOVE not in version.tags:
        return None
    try:
        move = Move.model_validate_json(version.tags[MOVE])
    except ValidationError as error:
        log.error("%s@%s: its tag %s is no move, and is passed over: %s", version.policy, version.version, MOVE, error)
        return None
    statement = if_valid(ChampionStatement, version)
    if statement is None:
        is_borne_out = move.number == 0 and newest_number(registry, version.policy) == 0
    else:
        is_borne_out = (statement.number, statement.kind, statement.run_id) == (move.number, move.kind, move.run_id)
    return move if is_borne_out and (move.policy, move.version) == (version.policy, version.version) else None


def _recorded(
    registry: Registry, db: LoomDB | None, version: PolicyVersion, move: Move, message: str
) -> PromotionOutcome:
    """Write the move to LoomDB; a rollback stands without it, and is recorded by the next command."""
    try:
        db = db or LoomDB.open()
        ledger.record_move(db, move)
    except ServiceError as error:
        if move.kind != "rollback":
            raise
        pending = f"{message}; LoomDB could not be reached ({error}), the next command that moves an alias records it"
        return _outcome(registry, version, pending).model_copy(update={"recorded": False})
    registry.delete_tag(version, MOVE)
    settle(move.policy, registry, db)
    return _outcome(registry, version, message)


def _drop_challenger(registry: Registry, version: PolicyVersion) -> None:
    if registry.aliases(version.policy).get(CHALLENGER) == version.version:
        registry.set_aliases(version.policy, {CHALLENGER: None})


def _outcome(registry: Registry, version: PolicyVersion, message: str) -> PromotionOutcome:
    return PromotionOutcome(
        policy=version.policy, version=version.version, aliases=registry.aliases(version.policy), message=message
    )


def _short(text: str) -> str:
    """Within the length MLflow allows a tag everywhere."""
    return text if len(text) <= 4_000 else f"{text[:3_999]}…"

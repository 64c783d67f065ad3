"""A person's decision about a waiting run, and finishing that run when no flow waits for the answer."""

from loomrl.errors import ConfigError
from loomrl.promotion import promote
from loomrl.promotion.review import review
from loomrl.promotion.rules import PROMOTED, REFUSED, UNCHANGED, WAITING, PersonApproval
from loomrl.runs.config import PolicyConfig
from loomrl.runs.report.build import build_report
from loomrl.storage import registry as tracking
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry
from loomrl.storage.run_record import RunRecord, is_alive, list_runs, now, read_run, run_folder, write_run
from loomrl.types import PromotionDecision


def answer(run_id: str, approved: bool, person: str, reason: str) -> RunRecord:
    """Record a person's answer and finish the run, unless its own flow still waits and does so itself; returns the
    run's record as it was finished.

    The same answer again finishes a run whose process died before it could. An answer that was recorded stays, also
    where the run could not be finished.

    Raises:
        ConfigError: when there is no such run, it does not wait, its flow still waits, another answer was given before,
            or `person` is empty.
        GateRefused: when the champion changed while the run was judged, or its alias is gone.
        ArtifactError: when a version's files are not what was registered, or the report cannot be written.
        ServiceError: when LoomDB or the registry cannot be reached, or somebody else moves the policy's aliases.
    """
    record = _waiting(run_id)
    if is_alive(run_id):
        raise ConfigError(
            f"run {run_id} waits in its flow: answer in the Prefect UI (flow run {record.prefect_flow_run_id}), or end "
            "that flow and answer here"
        )
    db = LoomDB.open()
    asked = db.approval(run_id)
    # Answered before, but the process died before it could finish the run: the first answer stands.
    if asked is None or asked.approved is None:
        db.decide_approval(run_id, approved, person, reason)
    elif (asked.approved, asked.person) != (approved, person):
        word = "approved" if asked.approved else "rejected"
        raise ConfigError(f"run {run_id} was {word} by {asked.person} already; a decision is final")
    return finish_waiting(run_id, db=db)


def finish_waiting(run_id: str, registry: Registry | None = None, db: LoomDB | None = None) -> RunRecord:
    """Judge a waiting run again, now with the person's answer, and carry the decision out; returns the run's record.

    The rules are applied anew: a champion that changed meanwhile, or a waiver that ran out, refuses the version.
    Without an answer the run goes on waiting. When something fails before the decision is carried out, the run still
    waits, and can be finished by another call.

    Raises:
        ConfigError: when the run does not wait, or there is no such run.
        GateRefused: when the champion changed while the run was judged, or its alias is gone.
        ArtifactError: when a version's files are not what was registered, or the report cannot be written.
        ServiceError: when LoomDB or the registry cannot be reached, or somebody else moves the policy's aliases.
    """
    registry, db = registry or Registry(), db or LoomDB.open()
    with promote.exclusive(read_run(run_id).policy):
        record = _waiting(run_id)
        decision = _decide_again(record, registry, db)
        # Kept first: should this process die now, the next one carries out the same decision.
        record = record.model_copy(update={"decision": decision})
        write_run(record)
        outcome = promote.apply(decision, run_id, registry, db)
        state = record.state if decision.decision == WAITING else decision.decision
        record = record.model_copy(update={"state": state, "finished": now(), "message": outcome.message})
        write_run(record)
    build_report(run_id, run_folder(run_id))
    if record.mlflow_run_id:
        tags = {"loomrl.state": record.state, "loomrl.version": record.version or "none"}
        tracking.set_tags(record.mlflow_run_id, tags)
        if record.state != WAITING:
            tracking.finish_run(record.mlflow_run_id, "FAILED" if record.state == REFUSED else "FINISHED")
    return record


def waiting_runs(policy: str | None = None) -> list[RunRecord]:
    """Runs that wait for a person, newest first, of one policy if it is named.

    Raises:
        ArtifactError: when a run's record is torn.
    """
    return [record for record in list_runs(policy) if record.state == WAITING]


def _decide_again(record: RunRecord, registry: Registry, db: LoomDB) -> PromotionDecision:
    given = db.approval(record.run_id)
    approval = PersonApproval(given.approved, given.person, given.reason) if given else None
    assert record.version is not None
    version = registry.require(record.policy, record.version)
    decision = review(registry, PolicyConfig.model_validate(record.config), version, record.shadow, approval)
    if decision.decision == UNCHANGED and record.decision and record.decision.decision == PROMOTED:
        return record.decision  # this very run made it champion, then its process died
    return decision


def _waiting(run_id: str) -> RunRecord:
    record = read_run(run_id)
    if record.state != WAITING or record.version is None:
        waiting = ", ".join(other.run_id for other in waiting_runs()) or "none"
        raise ConfigError(f"run {run_id} does not wait for approval, it is {record.state!r}; waiting runs: {waiting}")
    return record

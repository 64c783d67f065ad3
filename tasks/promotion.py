"""Stage 7: the rules decide, the aliases move, the deployment is recorded; or a refusal with its reasons."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.errors import GateRefused
from loomrl.promotion import promote, review, rules
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, Registry
from loomrl.storage.run_record import read_run
from loomrl.types import PromotionDecision
from tasks.record import recorded, run_config, update


@task(name="promotion", cache_policy=NO_CACHE)
def promotion(run_id: str) -> None:
    """Judge the version by every rule and carry the decision out; say so where nothing changed since the last time.

    Raises:
        GateRefused: when a rule refuses the version; the champion stays.
    """
    with recorded(run_id, "promotion") as entry:
        registry, record, config = Registry(), read_run(run_id), run_config(run_id)
        version = registry.require(record.policy, record.version or CHALLENGER)
        if review.recorded(registry, config, version):
            entry.status = "repeated"
        with promote.exclusive(record.policy):
            decision = review.review(registry, config, version, record.shadow, approval(run_id))
            update(run_id, decision=decision)
            entry.verdict = promote.apply(decision, run_id, registry).message
    if decision.decision == rules.REFUSED:
        raise GateRefused(refusal(decision))


def approval(run_id: str) -> rules.PersonApproval:
    """What a person decided about this run, if anybody has."""
    with LoomDB.open() as db:
        given = db.approval(run_id)
    return rules.PersonApproval(given.approved, given.person, given.reason) if given else rules.PersonApproval(None)


def refusal(decision: PromotionDecision) -> str:
    """Why a version was refused, in one sentence."""
    return f"{decision.policy} version {decision.version} was refused: {'; '.join(decision.reasons)}"

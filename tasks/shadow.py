"""Stage 6: the challenger beside the champion on a running policy server, never acting."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.transactions import Transaction, get_transaction

from loomrl.promotion import promote
from loomrl.promotion.review import recorded as recorded_decision
from loomrl.shadow.shadow import run_shadow
from loomrl.storage.registry import CHALLENGER, CHAMPION, PolicyVersion, Registry
from loomrl.storage.run_record import read_run
from loomrl.types import ShadowReport
from tasks.record import recorded, run_config, run_folders, update

VERSION = "version"


@task(name="shadow", cache_policy=NO_CACHE)
def shadow(run_id: str) -> None:
    """Watch the challenger, or repeat the report where policy, champion, rules and snapshot are unchanged."""
    with recorded(run_id, "shadow") as entry:
        registry, record, config = Registry(), read_run(run_id), run_config(run_id)
        version = registry.require(record.policy, record.version or CHALLENGER)
        champion = registry.get(record.policy, CHAMPION)
        update(run_id, champion_before=champion.version if champion else None)
        before = recorded_decision(registry, config, version)
        if before and before.shadow:
            report, entry.status = before.shadow, "repeated"
        else:
            with promote.exclusive(record.policy):
                promote.make_challenger(registry, version)
            beside = None if champion and champion.version == version.version else champion
            report = run_shadow(config, run_folders(run_id)["environment"], version, beside)
        update(run_id, shadow=report)
        entry.verdict = _verdict(report)
        if transaction := get_transaction():
            transaction.set(VERSION, version)


@shadow.on_rollback
def dismiss_challenger(transaction: Transaction) -> None:
    """What follows shadow failed or was refused: the version is challenger no longer.

    The other aliases are promotion's, which finishes or leaves its own moves.
    """
    version: PolicyVersion | None = transaction.get(VERSION, None)
    if version is not None:
        registry = Registry()
        with promote.exclusive(version.policy):
            if registry.aliases(version.policy).get(CHALLENGER) == version.version:
                registry.set_aliases(version.policy, {CHALLENGER: None})


def _verdict(report: ShadowReport) -> str:
    if report.champion_version is None:
        if report.bitwise_equal is None:
            return "no decision was served; no champion to compare with"
        equal = "bit for bit equal to the artifact" if report.bitwise_equal else "NOT equal to the artifact"
        return f"{report.num_decisions:,} decisions served, {equal}; no champion to compare with"
    agreement = f", agreement {report.agreement.estimate:.1%}" if report.agreement else ""
    followed = report.consequences
    if followed is None or not followed.examined:
        agreement += ", what follows was not examined"
    else:
        agreement += (
            f"; in {followed.num_episodes:,} further episodes {followed.num_continued:,} of "
            f"{followed.num_disagreements:,} disagreements followed"
        )
    gate = "within all limits" if report.passed else "limits broken"
    return f"{report.num_decisions:,} decisions beside version {report.champion_version}{agreement}; {gate}"

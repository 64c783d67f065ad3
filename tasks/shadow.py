"""Stage 6: the challenger beside the champion on a running policy server, never acting."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.transactions import Transaction, get_transaction

from loomrl.promotion.review import recorded as recorded_decision
from loomrl.registry import CHALLENGER, CHAMPION, Registry
from loomrl.runs import read_run
from loomrl.shadow.shadow import run_shadow
from loomrl.types import ShadowReport
from tasks.run import recorded, run_config, run_folders, update

ALIASES, POLICY = "aliases", "policy"


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
            _remember_aliases(registry, record.policy)
            registry.set_aliases(record.policy, {CHALLENGER: version.version})
            beside = None if champion and champion.version == version.version else champion
            report = run_shadow(config, run_folders(run_id)["environment"], version, beside)
        update(run_id, shadow=report)
        entry.verdict = _verdict(report)


@shadow.on_rollback
def restore_aliases(transaction: Transaction) -> None:
    """Put the aliases back where they stood before shadow, when what follows it failed or was refused."""
    aliases: dict[str, str] | None = transaction.get(ALIASES, None)
    if aliases is not None:
        moves = {alias: aliases.get(alias) for alias in (CHAMPION, CHALLENGER, "previous")}
        Registry().set_aliases(transaction.get(POLICY), moves)


def _remember_aliases(registry: Registry, policy: str) -> None:
    if transaction := get_transaction():
        transaction.set(POLICY, policy)
        transaction.set(ALIASES, registry.aliases(policy))


def _verdict(report: ShadowReport) -> str:
    if report.champion_version is None:
        equal = "bit for bit equal to the artifact" if report.bitwise_equal else "NOT equal to the artifact"
        return f"{report.num_decisions:,} decisions served, {equal}; no champion to compare with"
    agreement = f", agreement {report.agreement.estimate:.1%}" if report.agreement else ""
    gate = "within all limits" if report.passed else "limits broken"
    return f"{report.num_decisions:,} decisions beside version {report.champion_version}{agreement}; {gate}"

"""Monitoring: one look at a champion, and at a challenger beside it, shown as tables; when the champion is degraded,
Prefect's automations hear of it."""

from typing import Any
from uuid import NAMESPACE_URL, uuid5

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.logging import get_run_logger

from loomrl.monitoring.look import DEGRADED, Look, looking
from loomrl.promotion.comparison.compare import VersionComparison, compare_versions
from loomrl.runs.config import load_config
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, CHAMPION, Registry
from loomrl.system.home import config_file

DEGRADED_EVENT = "loomrl.policy.degraded"


@task(name="monitoring", cache_policy=NO_CACHE)
def look_at(policy: str) -> Look:
    """Look, show and announce; the look counts only after that, so that a crash repeats it."""
    config = load_config(config_file(policy))
    with looking(config) as look:
        create_table_artifact(claim_rows(look), key=f"monitoring-{policy}".replace("_", "-"), description=look.sentence)
        if look.outcome == DEGRADED:
            get_run_logger().warning(look.sentence)
            announce(look, seed=config.training.seed + 1)
    return look


@task(name="comparison", cache_policy=NO_CACHE)
def compare_roles(policy: str) -> VersionComparison | None:
    """Compare the challenger with the champion by the audit log, show and keep it; None where nobody challenges."""
    config, registry = load_config(config_file(policy)), Registry()
    champion, challenger = (registry.get(policy, role) for role in (CHAMPION, CHALLENGER))
    if champion is None or challenger is None or champion.version == challenger.version:
        return None
    found = compare_versions(config, registry, champion, challenger)
    found.write(found.path)
    with LoomDB.open() as db:
        db.record_event(f"comparison {policy}", found.to_json())
    key = f"comparison-{policy}".replace("_", "-")
    create_table_artifact(difference_rows(found), key=key, description=found.sentence)
    return found


def announce(look: Look, seed: int) -> None:
    """Emit the event on which `deploy/prefect.yaml` retrains, and wait until it is sent; a repeated look's is the same.

    `seed` is one to retrain with: on the inputs it had, the life cycle would only repeat its champion.
    """
    resource = f"loomrl.policy.{look.policy}"
    reasons = [claim.id for claim in look.claims if claim.verdict == "refuted"]
    emit_event(
        DEGRADED_EVENT,
        resource={"prefect.resource.id": resource, "prefect.resource.name": look.policy},
        payload={"policy": look.policy, "version": look.version, "seed": seed, "refuted": reasons},
        id=uuid5(NAMESPACE_URL, f"{resource}@{look.version} since {sorted(look.since.items())}"),
    )
    EventsWorker.instance().drain()


def claim_rows(look: Look) -> list[dict[str, Any]]:
    """The look as rows of a table."""
    return [{"claim": claim.id, "verdict": str(claim.verdict), "finding": claim.finding} for claim in look.claims]


def difference_rows(found: VersionComparison) -> list[dict[str, Any]]:
    """The comparison as rows of a table: what both did live, then what the champion's log says of the challenger."""
    live = [
        {"compared": one.quantity, "finding": one.finding, "value": f"{one.low:+.4g} to {one.high:+.4g}"}
        for one in found.live.differences
    ]
    estimates = found.off_policy.estimates
    by_log = [
        {"compared": one.estimator, "finding": one.refused or "estimated", "value": _shown(one.value, one.low)}
        for one in estimates
    ]
    return live + by_log


def _shown(value: float | None, low: float | None) -> str:
    shown = "-" if value is None else f"{value:.4g}"
    return shown if low is None else f"{shown}, at least {low:.4g}"

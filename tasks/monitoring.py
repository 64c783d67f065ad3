"""Monitoring: one look at a champion, shown as a table; when it is degraded, Prefect's automations hear of it."""

from typing import Any
from uuid import NAMESPACE_URL, uuid5

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.logging import get_run_logger

from loomrl.config import load_config
from loomrl.monitoring.look import DEGRADED, Look, looking
from tasks.record import config_path

DEGRADED_EVENT = "loomrl.policy.degraded"


@task(name="monitoring", cache_policy=NO_CACHE)
def look_at(policy: str) -> Look:
    """Look, show and announce; the look counts only after that, so that a crash repeats it."""
    config = load_config(config_path(policy))
    with looking(config) as look:
        create_table_artifact(claim_rows(look), key=f"monitoring-{policy}".replace("_", "-"), description=look.sentence)
        if look.outcome == DEGRADED:
            get_run_logger().warning(look.sentence)
            announce(look, seed=config.training.seed + 1)
    return look


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

"""What the page shows: one document, a function of a server's parts."""

import logging
import time

from loomrl.serving.api.status import describe
from loomrl.serving.context import ServerContext
from loomrl.serving.guardian.consequences import EVENT
from loomrl.serving.telemetry.history import NUM_POINTS
from loomrl.storage.loomdb.records import Event
from loomrl.types import Json

log = logging.getLogger(__name__)


def document(context: ServerContext, after: float) -> Json:
    """What the page shows, as JSON values, but for who looks; of the history only the points later than `after`
    (seconds since 1970).
    """
    roles, plan = context.roles.current, context.controls.orders.plan
    return {
        "time": time.time(),
        "started": context.started,
        "status": describe(context, with_orders=True),
        "previous": None if roles.previous is None else roles.previous.version,
        "shares": {version: plan.fraction(version) for version in plan.split},
        # Of several workers one has the monitors.
        "monitors": None if context.guardian is None else context.guardian.describe(),
        "events": [shown for event in context.events if (shown := _event(event)) is not None],
        "totals": context.history.counts(),
        "num_points": NUM_POINTS,
        "history": context.history.after(after),
    }


def _event(event: Event) -> Json | None:
    """A version that came or went: who moved it, from which version to which, and why; None where a row of LoomDB does
    not say that."""
    data = event.data
    taken_out = event.kind == EVENT
    try:
        return {
            "time": event.created.timestamp(),
            "kind": event.kind,
            "version": data["trigger"]["version"] if taken_out else data["version"],
            "other": data.get("to") if taken_out else data.get("before"),
            "person": data.get("person"),
            "reason": data["reason"],
        }
    except (KeyError, TypeError) as error:
        log.error("an event of LoomDB of %s is no %s, it was changed: %r", event.created, event.kind, error)
        return None

"""What the page shows: one document, a function of a server's parts."""

import time

from loomrl.serving.api.status import describe
from loomrl.serving.context import ServerContext
from loomrl.serving.guardian.consequences import EVENT
from loomrl.serving.telemetry.history import NUM_POINTS
from loomrl.storage.loomdb.records import Event
from loomrl.types import Json


def document(parts: ServerContext, after: float) -> Json:
    """Everything but who looks; of the history only the points later than `after` (seconds since 1970)."""
    roles, plan = parts.roles.current, parts.controls.orders.plan
    return {
        "time": time.time(),
        "started": parts.started,
        "status": describe(parts, with_orders=True),
        "previous": None if roles.previous is None else roles.previous.version,
        "shares": {version: plan.fraction(version) for version in plan.split},
        "monitors": None if parts.guardian is None else parts.guardian.describe(),  # of several workers one has them
        "events": [_event(event) for event in parts.events],
        "totals": parts.history.counts(),
        "num_points": NUM_POINTS,
        "history": parts.history.after(after),
    }


def _event(event: Event) -> Json:
    """A version that came or went: who moved it, from which version to which, and why."""
    data = event.data
    taken_out = event.kind == EVENT
    return {
        "time": event.created.timestamp(),
        "kind": event.kind,
        "version": data["trigger"]["version"] if taken_out else data["version"],
        "other": data.get("to") if taken_out else data.get("before"),
        "person": data.get("person"),
        "reason": data["reason"],
    }

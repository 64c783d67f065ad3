"""What people and Prometheus see of a hub: `/hub` as JSON, `/metrics`, and the page at `/dashboard`."""

import time
from importlib import resources
from typing import Any

from loomrl.language.trajectory.api.metrics import HubMetrics
from loomrl.language.trajectory.state.environments import HubEnvironment
from loomrl.language.trajectory.state.hub import Hub
from loomrl.language.trajectory.storage.journal import HubJournal
from loomrl.system.http.asgi import Response, as_json
from loomrl.system.http.request import Request

_FILES = {
    "/dashboard": ("dashboard.html", b"text/html; charset=utf-8"),
    "/dashboard/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/dashboard/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
PATHS = {path: kind.decode().partition(";")[0] for path, (_, kind) in _FILES.items()}  # content types
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class View:
    """The read-only routes for people and Prometheus: `/hub`, `/metrics` and the dashboard's files."""

    def __init__(self, journal: HubJournal, metrics: HubMetrics) -> None:
        self._journal, self._metrics = journal, metrics
        folder = resources.files(__package__) / "page"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    async def page(self, request: Request) -> Response:
        """A file of the page; what it shows it asks for at `/hub`."""
        body, kind = self._files[request.path]
        return Response(body, content_type=kind, headers=_HEADERS)

    async def metrics(self, request: Request) -> Response:
        """The hub's metrics in Prometheus' text format, version 0.0.4."""
        return Response(self._metrics.text(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def hub(self, request: Request) -> Response:
        """Registration, queues, counts and environments of the hub, as one JSON object."""
        hub, now = self._journal.hub, time.time()
        return as_json(
            {
                "registration": hub.state.registration,
                "step": hub.state.step,
                "policy_version": hub.state.policy_version,
                "queues": _queues(hub),
                "counts": self._metrics.counts(),
                "dropped": hub.dropped,
                "environments": [_environment(hub, one, now) for one in hub.environments],
            }
        )


def _queues(hub: Hub) -> dict[str, int]:
    leased = sum(batch.leased_until is not None for batch in hub.batches.values())
    return {
        "queued_groups": len(hub.queue),
        "queued_sequences": sum(hub.queue.sequences.values()),
        "buffered_groups": sum(map(len, hub.buffers.values())),
        "formed_batches": len(hub.batches) - leased,
        "leased_batches": leased,
        "waiting_bytes": hub.num_bytes,
        "memory_bytes": hub.contents.num_bytes,
    }


def _environment(hub: Hub, one: HubEnvironment, now: float) -> dict[str, Any]:
    return {
        "env_id": one.env_id,
        "name": one.shown_name,
        "state": "gone" if not one.connected else "quarantined" if one.quarantine else "taking part",
        "quarantine": one.quarantine,
        "weight": one.weight,
        "minimum": one.minimum,
        "group_size": one.group_size,
        "queued_groups": hub.queue.num_groups_of(one.env_id),
        "buffered_groups": len(hub.buffers.get(one.env_id, ())),
        "num_groups": one.num_groups,
        "num_rejected": one.num_rejected,
        "mean_score": one.mean_score,
        "silent_seconds": round(now - one.last_seen, 1),
    }

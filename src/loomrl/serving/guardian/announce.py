"""Tells Prefect that a version was taken back, over HTTP: the policy server does not know Prefect."""

import os
from base64 import b64encode
from uuid import NAMESPACE_URL, uuid5

from loomrl.errors import ServiceError
from loomrl.serving.guardian.quarantine import Quarantined
from loomrl.system.security.credentials import prefect_login

ROLLED_BACK_EVENT = "loomrl.policy.rolled_back"
_TIMEOUT_SECONDS = 10.0


def announce(entry: Quarantined) -> None:
    """Send Prefect, at `PREFECT_API_URL`, the event that a version was taken back; nothing where that is not set.

    Sent again it is the same event.

    Raises:
        ServiceError: when Prefect does not take it.
    """
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return
    import httpx

    try:
        answer = httpx.post(
            f"{url.rstrip('/')}/events", json=[_event(entry)], headers=_headers(url), timeout=_TIMEOUT_SECONDS
        )
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise ServiceError(f"Prefect at {url} did not take the event: {error}; check PREFECT_API_URL") from error


def _event(entry: Quarantined) -> dict[str, object]:
    trigger, resource = entry.trigger, f"loomrl.policy.{entry.policy}"
    return {
        "id": str(uuid5(NAMESPACE_URL, f"{resource}@{entry.version} {entry.server} {entry.time}")),
        "occurred": entry.time,
        "event": ROLLED_BACK_EVENT,
        "resource": {"prefect.resource.id": resource, "prefect.resource.name": entry.policy},
        "payload": {
            "policy": entry.policy,
            "version": entry.version,
            "to": entry.to,
            "server": entry.server,
            "reason": trigger.reason,
            **trigger.model_dump(include={"monitor", "e_value", "threshold", "num_decisions"}),
        },
    }


def _headers(url: str) -> dict[str, str]:
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    if credentials := prefect_login(url):
        return {"Authorization": f"Basic {b64encode(credentials.encode()).decode()}"}
    return {}

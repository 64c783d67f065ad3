"""Batches go out: `/batch`, its leases and acknowledgements, and `/latest_example`."""

import asyncio
import math
import time
from typing import Annotated
from urllib.parse import parse_qs

import orjson
from pydantic import Field

from loomrl.language.trajectory.api.bodies import spliced
from loomrl.language.trajectory.api.metrics import HubMetrics
from loomrl.language.trajectory.state.changes import GroupBatch
from loomrl.language.trajectory.state.fragments import listed
from loomrl.language.trajectory.storage.journal import HubJournal
from loomrl.language.trajectory.wire import NO_EXAMPLE
from loomrl.system.http.asgi import Response, as_json
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request
from loomrl.system.schema import Document

_MAX_LEASE_SECONDS = 24 * 3_600.0
_MAX_DIGITS = 18  # of a batch's number
_NONE = b'{"batch":null}'
_NOT_REGISTERED = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}


class Lease(Document):
    """The query of `/batch`: seconds within which the batch is to be acknowledged."""

    lease: Annotated[float, Field(gt=0, le=_MAX_LEASE_SECONDS)] | None = None


class BatchRoutes:
    """The routes that hand batches to trainers, one request after another."""

    def __init__(self, journal: HubJournal, metrics: HubMetrics) -> None:
        self._journal, self._metrics = journal, metrics
        self._turn = asyncio.Lock()

    async def batch(self, request: Request) -> Response:
        """The next batch: for good, or with `?lease=SECONDS` until it is acknowledged."""
        lease_seconds = _lease_of(request)
        async with self._turn:
            hub = self._journal.hub
            if hub.state.registration is None:
                return as_json(_NOT_REGISTERED)
            now = time.time()
            batch = hub.next_batch(now)
            if batch is None:
                await self._journal.durable()
                return Response(_NONE)
            pieces = await self._journal.contents(batch.groups)
            if self._journal.hub is not hub or hub.batches.get(batch.id) is not batch:
                return Response(_NONE)  # acknowledged or reset while it was read
            self._count(batch)
            if lease_seconds is None:
                hub.deliver(batch)
            else:
                hub.lease(batch, now + lease_seconds)
            await self._journal.durable()
        about = b"" if lease_seconds is None else b"," + orjson.dumps(_about(batch))[1:-1]
        return spliced(request.scope, listed(b'{"batch":', pieces, about + b"}"))

    async def acknowledge(self, request: Request, batch_id: str) -> Response:
        """Remove a leased batch that was trained on; a repeated acknowledgement changes nothing.

        Raises:
            Problem: 404 where no such batch was leased.
        """
        is_number = batch_id.isascii() and batch_id.isdigit() and len(batch_id) <= _MAX_DIGITS
        if not is_number or not self._journal.hub.acknowledge(int(batch_id)):
            raise Problem(404, f"no batch {batch_id[:_MAX_DIGITS]} was handed out with a lease")
        await self._journal.durable()
        return as_json({"status": "success"})

    async def latest_example(self, request: Request) -> Response:
        """The group that was queued last; empty lists where there is none."""
        hub = self._journal.hub
        if hub.latest is None:
            return Response(NO_EXAMPLE)
        if hub.latest_content is None:
            hub.latest_content = next(iter(await self._journal.contents([hub.latest])), None)
        return Response(NO_EXAMPLE if hub.latest_content is None else hub.latest_content.plain())

    def _count(self, batch: GroupBatch) -> None:
        if batch.leased_until is None:
            self._metrics.delivered.inc(len(batch.groups))
        else:
            self._metrics.redelivered.inc()


def _lease_of(request: Request) -> float | None:
    text = parse_qs(request.scope["query_string"].decode("latin-1")).get("lease", [None])[-1]
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_LEASE_SECONDS:
        raise Problem(422, f"lease={text}: seconds above 0, at most {_MAX_LEASE_SECONDS:g}")
    return seconds


def _about(batch: GroupBatch) -> dict[str, object]:
    """What a trainer that takes leases is told beside the wire."""
    return {
        "batch_id": batch.id,
        "policy_versions": [group.policy_version for group in batch.groups],
        "received_steps": [group.received_step for group in batch.groups],
    }

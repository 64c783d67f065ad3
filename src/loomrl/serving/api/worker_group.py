"""A port with several workers answers as one: whichever worker is asked, it gets what the others have to say.

Most requests concern nobody else. What one worker alone remembers (the decision that feedback is for, an agent's
episodes, its named requests) is answered by that one; a batch that concerns several is taken apart. What a person asks
about the server is answered for all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import orjson

from loomrl.serving.api.inference_protocol import DEFAULT_AGENT
from loomrl.serving.api.tensors import parameters_of, split
from loomrl.serving.context import GUARDIAN, ServerContext
from loomrl.serving.controls.order_file import SavedControls
from loomrl.serving.decisions.requests import parse_feedback, parse_json, parse_requests
from loomrl.serving.policy.roles import Roles
from loomrl.serving.workers import joining
from loomrl.serving.workers.address import WorkerAddress
from loomrl.serving.workers.peers import ENSURE, ORDERS, PeerClient, is_from_peer
from loomrl.system.http.asgi import Response, Scope, as_problem, header
from loomrl.system.http.problems import Problem

log = logging.getLogger(__name__)
_ANSWER_SECONDS = 5.0  # for what one worker alone can answer: long enough for it to be started again
_LOOK_SECONDS = 1.0  # for what is shown of all workers
_ENSURE_SECONDS = 8.0  # for what an order names to be loaded: longer than a worker waits for that
_LOAD_SECONDS = 90.0  # for versions to be brought
_ORDERS_SECONDS = 0.4  # for what was ordered to be in force
_PROBE_SECONDS = 0.4  # for a worker to show that it answers at all

_PROBE: Scope = {
    "method": "GET",
    "raw_path": b"/v2/health/live",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}

Own = Callable[[Scope, bytes], Awaitable[Response]]


@dataclass(frozen=True)
class WorkerAnswer:
    """The part of a request that one worker answers; `owner` is its index."""

    owner: int
    rows: list[int]  # the places of its entries in the request
    body: bytes


class WorkerGroup:
    """One worker's view of all workers of a port. `own` is what this one answers by itself."""

    def __init__(self, context: ServerContext, address: WorkerAddress, own: Own) -> None:
        self._context, self._address, self._own = context, address, own
        self._peers = PeerClient(address)
        self._others = [index for index in range(address.count) if index != address.index]
        self._roles, self._remembers = Roles(), False  # whether any version loaded then has a memory
        context.controls.connect({index: partial(self._give, index) for index in self._others})

    def concerns_others(self, scope: Scope, body: bytes) -> bool:
        """Whether a request of agents needs another worker; False for one that is malformed, which this worker
        refuses.
        """
        return bool(self._shares(scope, body))

    async def answer(self, scope: Scope, body: bytes) -> Response:
        """The answer to any request; one that another worker passed on is answered here.

        Raises:
            Problem: 503 where a worker that is needed does not answer.
        """
        if is_from_peer(scope):
            return await self._own(scope, body)
        if shares := self._shares(scope, body):
            return await self._shared(shares, scope)
        return await self._joined(scope, body)

    async def ensure(self, versions: set[str]) -> dict[str, str]:
        """Have the other workers load versions that are about to be named; returns those that one of them has not
        loaded yet, and why.

        Raises:
            Problem: 422 where one cannot.
        """
        scope = {
            "method": "POST",
            "raw_path": ENSURE.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        body = orjson.dumps({"versions": sorted(versions)})
        not_loaded = dict[str, str]()
        for answer in await asyncio.gather(*(self._ensured(index, scope, body) for index in self._others)):
            told = orjson.loads(answer.body)
            if answer.status == 422:
                raise Problem(422, told["error"])
            not_loaded |= told["not_loaded"] if answer.status < 400 else dict.fromkeys(versions, told["error"])
        return not_loaded

    async def _ensured(self, index: int, scope: Scope, body: bytes) -> Response:
        """What a worker says of versions: one that answers at all is waited for."""
        asked = asyncio.ensure_future(self._answer_to(WorkerAnswer(index, [], body), scope, _ENSURE_SECONDS))
        probe = asyncio.ensure_future(self._answer_to(WorkerAnswer(index, [], b""), _PROBE, _PROBE_SECONDS))
        try:
            await asyncio.wait([asked, probe], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() and (answer := await probe).status >= 400:
                return answer
            return await asked
        finally:
            asked.cancel()
            probe.cancel()

    def _give(self, index: int, orders: SavedControls) -> SavedControls | None:
        return _known_by(self._peers.tell(index, ORDERS, orders.to_bytes(), _ORDERS_SECONDS))

    # --- what belongs to one worker ------------------------------------------------------------------------------

    def _shares(self, scope: Scope, body: bytes) -> list[WorkerAnswer]:
        """Who answers what; empty where this worker answers all, also what is wrong with the request."""
        if scope["method"] != "POST" or is_from_peer(scope):
            return []
        try:
            if scope["path"] == "/feedback":
                return self._of_feedback(body)
            if scope["path"] == "/decide":
                return self._of_requests(scope, body)
            if scope["path"].endswith("/infer") and self._has_memory():
                return self._of_inference(scope, body)
        except Problem:
            pass
        return []

    def _of_feedback(self, body: bytes) -> list[WorkerAnswer]:
        document = parse_json(body)
        entries, batched = parse_feedback(document, self._context.settings.max_rows)
        owners = [self._address.owner_of_decision(entry.decision_id) for entry in entries]
        return self._by_owner(owners, body, "feedback", document["feedback"] if batched else [])

    def _of_requests(self, scope: Scope, body: bytes) -> list[WorkerAnswer]:
        """By agent where a policy with a memory is loaded; else only requests with an id have an owner."""
        request_id, has_memory = header(scope, b"x-request-id"), self._has_memory()
        if not has_memory and not request_id and b'"request_id"' not in body:
            return []
        document = parse_json(body)
        requests, batched = parse_requests(document, request_id, self._context.settings.max_rows)
        names = requests.request_ids or [None] * len(requests)
        owners = [
            self._address.owner_of_agent(agent_id) if has_memory or name is not None else self._address.index
            for agent_id, name in zip(requests.agent_ids, names, strict=True)
        ]
        entries = document["requests"] if batched else []
        named = [{**entry, "request_id": name} for entry, name in zip(entries, names, strict=False)]
        return self._by_owner(owners, body, "requests", named)

    def _of_inference(self, scope: Scope, body: bytes) -> list[WorkerAnswer]:
        text, _ = split(body, header(scope, b"inference-header-content-length"))
        agent_id = parameters_of(parse_json(text), "the request").get("agent_id", DEFAULT_AGENT)
        return self._by_owner([self._address.owner_of_agent(str(agent_id))], body, "", [])

    def _by_owner(self, owners: Sequence[int], body: bytes, key: str, entries: Sequence[Any]) -> list[WorkerAnswer]:
        rows: dict[int, list[int]] = {}
        for row, owner in enumerate(owners):
            rows.setdefault(owner, []).append(row)
        if rows.keys() == {self._address.index}:
            return []
        if len(rows) == 1:
            return [WorkerAnswer(owners[0], rows[owners[0]], body)]
        return [
            WorkerAnswer(owner, found, orjson.dumps({key: [entries[row] for row in found]}))
            for owner, found in rows.items()
        ]

    def _has_memory(self) -> bool:
        roles = self._context.roles.current
        if roles is not self._roles:
            self._roles, self._remembers = roles, any(policy.memory_size for policy in roles.loaded().values())
        return self._remembers

    async def _shared(self, shares: list[WorkerAnswer], scope: Scope) -> Response:
        if len(shares) == 1:
            return await self._ask(shares[0].owner, scope, shares[0].body, _ANSWER_SECONDS)
        answers = await asyncio.gather(*(self._answer_to(share, scope) for share in shares))
        rows = [share.rows for share in shares]
        join = joining.feedback if scope["path"] == "/feedback" else joining.decisions
        return join(rows, answers)

    async def _answer_to(self, share: WorkerAnswer, scope: Scope, seconds: float = _ANSWER_SECONDS) -> Response:
        try:
            return await self._ask(share.owner, scope, share.body, seconds)
        except Problem as problem:
            return as_problem(problem.status, problem.message, problem.headers)

    async def _ask(self, index: int, scope: Scope, body: bytes, timeout_seconds: float) -> Response:
        if index == self._address.index:
            return await self._own(scope, body)
        return await self._peers.ask(index, scope, body, timeout_seconds)

    # --- what is answered for all --------------------------------------------------------------------------------

    async def _joined(self, scope: Scope, body: bytes) -> Response:
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/monitors":
            return await self._ask(GUARDIAN, scope, body, _ANSWER_SECONDS)
        if method == "GET" and path == "/shadow/records":
            return await self._ask(self._named(scope), scope, body, _ANSWER_SECONDS)
        if method == "GET" and (join := _join_of(path)) is not None:
            own, others = await asyncio.gather(self._own(scope, body), self._look_at_others(scope))
            return own if own.status >= 400 else join({**others, self._address.index: own}, own)
        if method == "POST" and path.startswith("/v2/repository/models/") and path.endswith(("/load", "/unload")):
            return await self._by_all(scope, body)
        return await self._own(scope, body)

    def _named(self, scope: Scope) -> int:
        """The worker that a query names: sequences are those of its chain."""
        (worker,) = parse_qs(scope["query_string"].decode("latin-1")).get("worker", [""])[:1]
        if worker not in map(str, range(self._address.count)):
            raise Problem(400, f"name a `worker` from 0 to {self._address.count - 1}: each has a chain of its own")
        return int(worker)

    async def _look_at_others(self, scope: Scope) -> dict[int, Response | None]:
        answers = await asyncio.gather(*(self._look_at(index, scope) for index in self._others))
        return dict(zip(self._others, answers, strict=True))

    async def _look_at(self, index: int, scope: Scope) -> Response | None:
        """What another worker says of itself; None where it does not."""
        try:
            answer = await self._peers.ask(index, scope, b"", _LOOK_SECONDS)
        except Problem:
            return None
        return answer if answer.status < 400 else None

    async def _by_all(self, scope: Scope, body: bytes) -> Response:
        """Have every worker do it, this one last: a new champion decides as soon as all have it."""
        asked = (self._peers.ask(index, scope, body, _LOAD_SECONDS) for index in self._others)
        failed = joining.failed(await asyncio.gather(*asked))
        own = await self._own(scope, body)
        return own if failed is None or own.status >= 400 else failed


def _join_of(path: str) -> "joining.Join | None":
    if path == "/status":
        return joining.status
    if path == "/metrics":
        return joining.metrics
    if path == "/dashboard/data":
        return joining.dashboard
    if path.startswith("/v2/models/") and path.endswith("/stats"):
        return joining.statistics
    return None


def _known_by(answer: bytes | None) -> SavedControls | None:
    """The orders that a worker says it knows; None where it says nothing that can be read."""
    try:
        return None if answer is None else SavedControls.model_validate(orjson.loads(answer))
    except ValueError as error:
        log.error("what another worker knows of orders cannot be read: %s", error)
        return None

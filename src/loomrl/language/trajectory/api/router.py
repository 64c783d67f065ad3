"""What a hub and a served engine answer by: a route is found, its sender checked, its body read.

Whatever happens has an answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from loomrl.errors import ServiceError
from loomrl.language.trajectory.api.bodies import BadGzip, Bodies, check_json, packed
from loomrl.language.trajectory.api.replies import TEXT_TYPE, WireRefusal
from loomrl.language.trajectory.wire import Invalid
from loomrl.system.http import routing
from loomrl.system.http.access import RUNS, check_role
from loomrl.system.http.asgi import ClientGone, Receive, Response, Scope, Send, as_json, header, respond, unread
from loomrl.system.http.browsers import (
    check_body_type,
    check_host,
    check_origin,
    check_program,
    check_site,
    is_browser,
    is_loopback,
)
from loomrl.system.http.guard import RouteGuard
from loomrl.system.http.intake import Intake, IntakeLimits
from loomrl.system.http.openapi import Api, describe
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request
from loomrl.system.http.routing import JSON_TYPE, Route
from loomrl.system.http.service_metrics import ServiceMetrics
from loomrl.system.http.tokens import Tokens

log = logging.getLogger(__name__)
_REFUSAL = {JSON_TYPE: WireRefusal, TEXT_TYPE: str}
_ALWAYS = (400, 403, 408, 413, 414, 421, 431, 500, 503)
_SCHEMES = ("http", "https")  # of its own page: a proxy may end TLS


class WireApplication:
    """The ASGI application of one server: its routes, and beside them the one that describes them.

    `title` and `purpose` are told by that description. `max_bytes` bounds bodies further, by who may send them.
    `intake` bounds the connections, for whoever runs the application. A server overrides `begin`, `end`, `check` and
    `observe`, which do nothing here.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        tokens: Tokens,
        host: str,
        bodies: Bodies,
        metrics: ServiceMetrics,
        *,
        title: str,
        purpose: str,
        max_bytes: Mapping[RouteGuard, int] | None = None,
    ) -> None:
        described = Route("GET", "/openapi.json", self._description, answers={200: dict[str, Any]})
        self._table = routing.RouteTable([*routes, described])
        self._api = Api(title, purpose, tokens, _REFUSAL, _ALWAYS, of_changes=(415,), of_what_is_sent=(422,))
        self._tokens, self._count, self._max_bytes = tokens, metrics.count_problem, max_bytes or {}
        self._bodies, self._on_loopback = bodies, is_loopback(host)
        self.intake = _intake_for(bodies.max_pending_bytes, self._count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's life span."""
        if scope["type"] == "lifespan":
            await receive()
            await self.begin()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.end()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        try:
            response = packed(scope, await self.answer(scope, receive))
        except ClientGone:
            return
        self.observe(scope["path"], time.perf_counter() - started)
        await respond(send, response)

    # --- what a server adds ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start what the server does by itself, before the first request; by default nothing."""

    async def end(self) -> None:
        """Stop what `begin` started and release what is held, after the last request; by default nothing."""

    def check(self) -> None:
        """Raise `ServiceError` while nothing can be answered; called for each request, before its body is read. By
        default nothing is raised."""

    def observe(self, path: str, seconds: float) -> None:
        """Take note of a request that was answered: its path, and its time in seconds. By default nothing is noted."""

    # --- a request ------------------------------------------------------------------------------------------------

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The response to one request: its handler's, or a refusal with the status that fits what went wrong. No
        error of a handler gets out: one that nobody expected is logged and answered 500.

        Raises:
            ClientGone: when the sender went away, so that nobody waits for an answer.
        """
        try:
            handler, max_bytes = self._admit(scope)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is an answer to it
            return unread(scope, self._refused(scope, error))
        try:
            request = Request(scope, await self._bodies.read(scope, receive, max_bytes), receive)
            if request.body:
                check_json(scope)
            response: Response = await handler(request)
            return response
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self._refused(scope, error)

    def _admit(self, scope: Scope) -> tuple[Callable[[Request], Any], int | None]:
        """Who answers, if anybody may, by what the headers say, and how many bytes it reads at most, if it may not
        be as many as others. What operators may do changes something, GETs too."""
        if self._on_loopback:
            check_host(header(scope, b"host"))
        check_origin(scope, _SCHEMES)
        route, places = self._find(scope)
        is_get = route.method == "GET"
        check_site(scope, changes=not is_get or route.guard is RUNS)
        if is_get and route.guard is RUNS:
            check_program(scope)
        if not is_get and is_browser(scope):
            check_body_type(scope)
        if route.guard is not None:
            check_role(scope, self._tokens, route.guard)
        self.check()
        return partial(route.handler, **places), self._max_bytes.get(route.guard) if route.guard else None

    def _refused(self, scope: Scope, error: Exception) -> Response:
        response = self._failed(scope, error)
        self._count(response.status)
        return response

    def _failed(self, scope: Scope, error: Exception) -> Response:
        match error:
            case BadGzip():
                return error.response
            case Invalid():
                return as_json({"detail": error.detail}, 422)
            case Problem():
                return Response(_detail(error.message), int(error.status), headers=error.headers)
            case ServiceError():
                return Response(_detail(f"nothing was taken: {error}"), 503, headers={"Retry-After": "1"})
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        return Response(_detail("the server failed; its log says why"), 500)

    def _find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        try:
            return self._table.find(scope)
        except Problem as problem:  # in the wire's words
            raise Problem(problem.status, HTTPStatus(problem.status).phrase, problem.headers) from problem

    async def _description(self, request: Request) -> Response:
        """This description of the API."""
        return as_json(await asyncio.to_thread(describe, self._table.routes, self._api))


def _intake_for(max_pending_bytes: int, count: Callable[[int], None]) -> Intake:
    """The bounds for connections of a hub or an engine; `count` is called with the status of each refusal.

    Requests that were read and not answered count too: posts that wait for the disk, prompts that wait for their turn.
    So the bound is twice what may be read at once. Answers may be batches or weights, so theirs is four times that.
    """
    bounds = IntakeLimits(max_pending_bytes=2 * max_pending_bytes, max_untaken_bytes=4 * max_pending_bytes)
    return Intake(bounds, _answer, count)


def _answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_detail(message), status, headers=dict(headers or {}))


def _detail(message: str) -> bytes:
    return as_json({"detail": message}).body

"""Who answers a request: its route is found, its sender checked, its body read; whatever happens has an answer."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from loomrl.errors import ServiceError
from loomrl.serving.asgi import ClientGone, Receive, Response, Scope, as_json, header, unread
from loomrl.serving.browsers import check_host, check_origin, check_program, check_site, is_loopback
from loomrl.serving.intake import Bounds, Intake
from loomrl.serving.problems import Problem
from loomrl.serving.tokens import OPERATE, Tokens
from loomrl.trajectory.access import check_role
from loomrl.trajectory.bodies import BadGzip, Bodies, check_json
from loomrl.trajectory.request import Request
from loomrl.trajectory.wire import Invalid

log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str | None, Handler]  # the role a token must have, None where none is needed; what answers
_SCHEMES = ("http", "https")  # of its own page: a proxy may end TLS


class Router:
    """The routes of one server, by method and path.

    `check` is asked before a body is read, `count` told of each refusal; `find_other` knows paths that hold a value.
    """

    def __init__(
        self,
        routes: Mapping[tuple[str, str], Route],
        tokens: Tokens,
        host: str,
        bodies: Bodies,
        *,
        check: Callable[[], None],
        count: Callable[[int], None],
        find_other: Callable[[str, str], Route | None] = lambda _method, _path: None,
    ) -> None:
        self._routes, self._tokens, self._bodies = routes, tokens, bodies
        self._on_loopback = is_loopback(host)
        self._check, self._count, self._find_other = check, count, find_other

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """Whatever happens to one request, it is answered and the server lives on.

        Raises:
            ClientGone: when nobody waits for an answer.
        """
        try:
            handler = self._admit(scope)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is an answer to it
            return unread(scope, self._refused(scope, error))
        try:
            request = Request(scope, await self._bodies.read(scope, receive), receive)
            if request.body:
                check_json(scope)
            return await handler(request)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self._refused(scope, error)

    def _admit(self, scope: Scope) -> Handler:
        """Who answers, if anybody may, by what the headers say. What operators may do changes something, GETs too."""
        if self._on_loopback:
            check_host(header(scope, b"host"))
        check_origin(scope, _SCHEMES)
        role, handler = self._find(scope["method"], scope["path"])
        is_get = scope["method"] == "GET"
        check_site(scope, changes=not is_get or role == OPERATE)
        if is_get and role == OPERATE:
            check_program(scope)
        if role is not None:
            check_role(scope, self._tokens, role)
        self._check()
        return handler

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

    def _find(self, method: str, path: str) -> Route:
        if (found := self._routes.get((method, path)) or self._find_other(method, path)) is not None:
            return found
        if allowed := sorted(other for other, known in self._routes if known == path):
            raise Problem(405, "Method Not Allowed", {"Allow": ", ".join(allowed)})
        raise Problem(404, "Not Found")


def intake_for(max_pending_bytes: int, count: Callable[[int], None]) -> Intake:
    """What the protocol of such a server takes, `count` told of each refusal. Requests that are read and not answered
    count there too: posts that wait for the disk, prompts that wait for their turn. So it is twice what may be read at
    once; and answers may be batches, or weights."""
    bounds = Bounds(max_pending_bytes=2 * max_pending_bytes, max_untaken_bytes=4 * max_pending_bytes)
    return Intake(bounds, _answer, count)


def _answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_detail(message), status, headers=dict(headers or {}))


def _detail(message: str) -> bytes:
    return as_json({"detail": message}).body

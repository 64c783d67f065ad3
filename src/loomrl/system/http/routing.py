"""The table of routes: what answers a request, and what the API's description says of it, in one place."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from loomrl.system.http.asgi import Scope
from loomrl.system.http.guard import RouteGuard
from loomrl.system.http.problems import Problem
from loomrl.system.schema import Document

Handler = Callable[..., Any]  # what a server's handlers take before the places of their paths, and give, is its own
JSON_TYPE, BYTES_TYPE = "application/json", "application/octet-stream"
_PLACE = re.compile(r"\\\{(\w+)\\\}")  # as `re.escape` writes it


@dataclass(frozen=True)
class Link:
    """A link in the API's description: the operation, by `method` and `path`, that takes up what another one answers.

    The values of `parameters` and `body` are OpenAPI's run-time expressions, such as `$response.body#/id`.
    """

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Route:
    """One operation: where it is, who may use it, and the types of what goes in and comes out.

    A type stands for JSON of it; a mapping gives a type by content type. `problems` are the statuses of refusals that a
    route has besides those of all routes of its kind. What it does is the docstring of its handler.
    """

    method: str
    path: str  # `/override/{override_id}`: a place takes one part of a path, whatever is quoted in it
    handler: Handler
    guard: RouteGuard | None = None  # None: anyone may use it
    answers: Mapping[int, Any] = field(default_factory=dict)  # by status, the first where all is well
    body: Any = None  # its type; None: it takes no body
    needs_body: bool = True
    query: type[Document] | None = None
    headers: tuple[str, ...] = ()  # that it reads
    problems: tuple[int, ...] = ()
    links: Mapping[str, Link] = field(default_factory=dict)  # of its first answer
    is_public: bool = True  # whether the description names it


class RouteTable:
    """The routes of a server; `find` gives that of a request by its method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed = {(route.method, route.path): route for route in self.routes if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in self.routes]

    def find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        """(The route of a request, what stands in the places of its path by name, unquoted).

        Raises:
            Problem: 404 for an unknown path, 405 with the methods there are for another method.
        """
        method, path = scope["method"], scope["path"]
        if (route := self._fixed.get((method, path))) is not None:
            return route, {}
        found = list(self._matching(scope["raw_path"].decode("latin-1")))
        for route, places in found:
            if route.method == method:
                return route, places
        if not found:
            raise Problem(404, f"no route {path}; see /openapi.json for those there are")
        allowed = ", ".join(sorted({route.method for route, _ in found}))
        raise Problem(405, f"{path} answers {allowed}", {"Allow": allowed})

    def _matching(self, path: str) -> Iterator[tuple[Route, dict[str, str]]]:
        for pattern, route in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                yield route, {name: unquote(value) for name, value in match.groupdict().items()}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(_PLACE.sub(r"(?P<\1>[^/]+)", re.escape(path)))

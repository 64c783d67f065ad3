"""`/dashboard`: the page's files, which anybody may have, and its data, which tokens guard."""

from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from pydantic import Field, ValidationError

from loomrl.serving.api.dashboard.data import document
from loomrl.serving.context import ServerContext
from loomrl.system.http.asgi import Response, Scope, as_json
from loomrl.system.http.guard import NO_TOKENS, OBSERVER, check_operator, holder_of
from loomrl.system.http.problems import Problem
from loomrl.system.http.routing import Route
from loomrl.system.http.tokens import OBSERVE, OPERATE
from loomrl.system.schema import Document, first_problem

PAGE = "index.html"
_TYPES = {"html": b"text/html; charset=utf-8", "js": b"text/javascript; charset=utf-8"}
_TYPES |= {"css": b"text/css; charset=utf-8", "svg": b"image/svg+xml"}
# Only files of this server, nothing inline, in nobody's frame: a page that cannot be made to do another's will.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect", "img")),
        *(f"{what} 'none'" for what in ("base-uri", "form-action", "frame-ancestors")),
        "require-trusted-types-for 'script'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Since(Document):
    """From when on the history is wanted: seconds since 1970."""

    after: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Dashboard:
    """The handlers of the dashboard: its page, its data and its static files, which are read once at the start."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        static = files(__package__).joinpath("static")
        self._files = {path.name: path.read_bytes() for path in static.iterdir()}

    def routes(self) -> list[Route]:
        """The routes of the dashboard's page, of its data and of its static files, with their handlers."""
        return [
            Route("GET", "/dashboard", self.page, None, {200: {_TYPES["html"].decode(): str}}),
            Route("GET", "/dashboard/data", self.data, OBSERVER, {200: dict[str, Any]}, query=Since),
            Route("GET", "/dashboard/{name}", self.file, None, {200: {kind.decode(): str for kind in _TYPES.values()}}),
        ]

    async def page(self, scope: Scope, body: bytes, started: float) -> Response:
        """The page for people who operate the server."""
        return await self.file(scope, body, started, PAGE)

    async def file(self, scope: Scope, body: bytes, started: float, name: str) -> Response:
        """A file of the page."""
        if name not in self._files:
            raise Problem(404, f"the page has no file {name!r}; there are: {', '.join(sorted(self._files))}")
        return Response(self._files[name], content_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    async def data(self, scope: Scope, body: bytes, started: float) -> Response:
        """What the page shows; `after` leaves out what the history holds until then."""
        check_operator(scope, self._context.tokens, OBSERVE)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        try:
            after = Since.model_validate({name: values[-1] for name, values in query.items()}, strict=False).after
        except ValidationError as error:
            raise Problem(400, first_problem(error)) from error
        response = as_json({**document(self._context, after), "you": self._viewer(scope)})
        response.headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
        return response

    def _viewer(self, scope: Scope) -> dict[str, Any]:
        """Whose token it is, and why its holder may not operate, if that is so."""
        holder = holder_of(scope, self._context.tokens)
        if holder is None:
            return {"name": None, "refused": NO_TOKENS}
        refused = None if holder.may(OPERATE) else f"the token of {holder.name!r} has not the role {OPERATE}"
        return {"name": holder.name, "refused": refused}

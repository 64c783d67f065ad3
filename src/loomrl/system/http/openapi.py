"""An API's description in OpenAPI 3.1, made of a server's table of routes.

https://spec.openapis.org/oas/v3.1.1.html
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

from pydantic import TypeAdapter

from loomrl import __version__
from loomrl.system.http.routing import JSON_TYPE, Link, Route
from loomrl.system.http.tokens import Tokens

Json = dict[str, Any]
_TOKEN = "token"
_REFUSALS = {
    400: "What was sent is damaged or is not what this operation reads; the sentence names the place.",
    401: "No token, or one that nobody has.",
    403: "The token has not the role, or a page of another server asks.",
    404: "It is not there.",
    408: "The request was not whole in time.",
    409: "It contradicts what is in force.",
    413: "The body is too large, packed or unpacked.",
    414: "The address is too long.",
    415: "The body is compressed in another way than gzip or deflate, or said to be other than JSON.",
    421: "The request was meant for another host: on loopback only this machine's names are answered.",
    422: "What was asked for is well-formed and cannot be done.",
    429: "More than the rate limit allows; see `Retry-After`.",
    431: "The headers are too long, or too many.",
    500: "A defect of the server; its log says why.",
    503: "Not now: what is needed is not there, or too much is being sent at once.",
    507: "The disk is full: nothing is done that cannot be recorded.",
}
_TOLD = {401: ("WWW-Authenticate",), 429: ("Retry-After",)}  # headers of refusals
_HEADERS = {
    "X-Request-Id": "Of the whole request: asked again under it, agents get the decisions they had.",
    "Inference-Header-Content-Length": "Where the JSON of the body ends and the bytes of its tensors begin.",
    "Idempotency-Key": "Names the request: one that comes again under it is taken once and answered as it was.",
    "X-Policy-Version": "The version of the policy that made the groups: a count.",
    "Prefer": "With `handling=lenient` the good groups of a list are taken, whatever the others have.",
}


@dataclass(frozen=True)
class Api:
    """What the description of an API says besides its routes.

    `refusal` is the type of what refusals have for a body. `always` are the statuses with which any request may be
    refused; `of_changes` and `of_what_is_sent` those of requests that change something, and with a body or a query.
    `places` are schemas of what stands in paths, by name; `told` says what a refusal means here.
    """

    title: str
    purpose: str
    tokens: Tokens
    refusal: Any
    always: tuple[int, ...]
    of_changes: tuple[int, ...] = ()
    of_what_is_sent: tuple[int, ...] = ()
    places: Mapping[str, Json] = field(default_factory=dict)
    told: Mapping[int, str] = field(default_factory=dict)


def describe(routes: Iterable[Route], api: Api) -> Json:
    """The OpenAPI 3.1 document of these routes, as JSON values; routes that are not public are left out.

    Raises:
        KeyError: for a header that a route reads and this module has no words for.
    """
    described = tuple(route for route in routes if route.is_public)
    schemas, components = _schemas(tuple(_kinds(described, api)))
    return {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": __version__, "description": api.purpose},
        "paths": _paths(described, api, schemas),
        "components": {
            "schemas": components,
            "responses": {str(status): _refusal(status, api, schemas) for status in _REFUSALS},
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer", "description": "See `loomrl tokens`."}},
        },
    }


def _paths(routes: Iterable[Route], api: Api, schemas: Mapping[Any, Json]) -> Json:
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, api, schemas)
    return paths


def _operation(route: Route, api: Api, schemas: Mapping[Any, Json]) -> Json:
    operation: Json = {
        "operationId": _id(route.method, route.path),
        "summary": cleandoc(route.handler.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        "tags": [(route.guard.role or "any") if route.guard else "open"],
        "parameters": [*_places(route, api), *_query(route), *map(_header, route.headers)],
        "responses": _responses(route, api, schemas),
    }
    if route.body is not None:
        content = _content(route.body, "validation", schemas)
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    if route.guard is not None and route.guard.is_closed(api.tokens):
        operation["security"] = [{_TOKEN: [route.guard.role] if route.guard.role else []}]
    return operation


def _id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _places(route: Route, api: Api) -> list[Json]:
    """What stands in the path."""
    names = re.findall(r"{(\w+)}", route.path)
    schemas = [{"type": "string", "minLength": 1, **api.places.get(name, {})} for name in names]
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in zip(names, schemas, strict=True)
    ]


def _query(route: Route) -> list[Json]:
    if route.query is None:
        return []
    properties = route.query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _header(name: str) -> Json:
    return {"name": name, "in": "header", "description": _HEADERS[name], "schema": {"type": "string"}}


def _responses(route: Route, api: Api, schemas: Mapping[Any, Json]) -> Json:
    statuses = {*api.always, *route.problems}
    statuses |= {401} if route.guard else set()
    statuses |= {404} if "{" in route.path else set()
    statuses |= set(api.of_changes) if route.method != "GET" else set()
    statuses |= set(api.of_what_is_sent) if route.body or route.query else set()
    refused = {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
    answered = {str(status): _answer(status, kind, schemas) for status, kind in route.answers.items()}
    if route.links:
        first = next(iter(answered.values()))
        first["links"] = {name: _link(link) for name, link in route.links.items()}
    return {**answered, **{status: refusal for status, refusal in refused.items() if status not in answered}}


def _answer(status: int, kind: Any, schemas: Mapping[Any, Json]) -> Json:
    return {"description": HTTPStatus(status).phrase, "content": _content(kind, "serialization", schemas)}


def _link(link: Link) -> Json:
    taken = {"operationId": _id(link.method, link.path), "parameters": dict(link.parameters)}
    return taken if link.body is None else {**taken, "requestBody": dict(link.body)}


def _refusal(status: int, api: Api, schemas: Mapping[Any, Json]) -> Json:
    content = _content(api.refusal, "serialization", schemas)
    headers = {name: {"schema": {"type": "string"}} for name in _TOLD.get(status, ())}
    return {"description": api.told.get(status, _REFUSALS[status]), "content": content, "headers": headers}


def _content(kind: Any, mode: str, schemas: Mapping[Any, Json]) -> Json:
    return {media: {"schema": schemas[one, mode]} for media, one in _by_media(kind).items()}


def _by_media(kind: Any) -> Mapping[str, Any]:
    return kind if isinstance(kind, Mapping) else {JSON_TYPE: kind}


def _kinds(routes: Iterable[Route], api: Api) -> Iterable[tuple[Any, str]]:
    """Every type that goes in (`validation`) or comes out (`serialization`)."""
    yield from ((kind, "serialization") for kind in _by_media(api.refusal).values())
    for route in routes:
        if route.body is not None:
            yield from ((kind, "validation") for kind in _by_media(route.body).values())
        for answer in route.answers.values():
            yield from ((kind, "serialization") for kind in _by_media(answer).values())


@cache
def _schemas(kinds: tuple[tuple[Any, Any], ...]) -> tuple[Mapping[Any, Json], Json]:
    """A schema for each type and direction, and the components they refer to."""
    asked = [(kind, mode, TypeAdapter(kind)) for kind, mode in dict.fromkeys(kinds)]
    schemas, shared = TypeAdapter.json_schemas(asked, ref_template="#/components/schemas/{model}")
    return schemas, shared["$defs"]

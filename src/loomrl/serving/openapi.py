"""The API's description in OpenAPI 3.1, made of the table of routes and of what this server serves just now.

https://spec.openapis.org/oas/v3.1.1.html
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from loomrl import __version__
from loomrl.serving.model import SMALL, ServedPolicy
from loomrl.serving.parts import Parts
from loomrl.serving.replies import Refusal
from loomrl.serving.routing import JSON_TYPE, Link, Route
from loomrl.serving.tensors import DATATYPES

Json = dict[str, Any]
_TOKEN = "token"
_REFUSALS = {
    400: "What was sent is damaged or is not what this operation reads; the sentence names the place.",
    401: "No token, or one that nobody has.",
    403: "The token has not the role, the page of another server asks, or the version does not act.",
    404: "It is not there.",
    408: "The request was not whole in time.",
    409: "It contradicts what is in force.",
    413: "The body is too large, packed or unpacked, or asks for more decisions than there may be at once.",
    414: "The address is too long.",
    415: "The body is compressed in another way than gzip or deflate, or said to be other than JSON.",
    421: "The request was meant for another host: on loopback only this machine's names are answered.",
    422: "What was asked for is well-formed and cannot be done.",
    429: "More decisions than the rate limit allows, or large bodies that were refused; see `Retry-After`.",
    431: "The headers are too long, or too many.",
    500: "A defect of the server; its log says why.",
    503: "Not now: no champion, a version that is not loaded, no fallback, a record that cannot be written, or too "
    "much that is being sent at once.",
    507: "The disk is full: nothing is done that cannot be recorded.",
}
_TOLD = {401: ("WWW-Authenticate",), 429: ("Retry-After",)}  # headers of refusals
_ALWAYS = (400, 403, 408, 413, 414, 415, 431, 500, 503)
_HEADERS = {
    "X-Request-Id": "Of the whole request: asked again under it, agents get the decisions they had.",
    "Inference-Header-Content-Length": "Where the JSON of the body ends and the bytes of its tensors begin.",
}


def document(routes: Iterable[Route], parts: Parts) -> Json:
    """The description, as JSON values."""
    described = tuple(route for route in routes if route.is_public)
    schemas, components = _schemas(tuple(_kinds(described)))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"LoomRL policy server: {parts.settings.policy}",
            "version": __version__,
            "description": "Decisions of a reinforcement-learning policy, and the controls of those who operate it.",
        },
        "paths": _paths(described, parts, schemas),
        "components": {
            "schemas": {**components, **_served(components, parts.roles.current.champion)},
            "responses": {str(status): _refusal(status) for status in _REFUSALS},
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer", "description": "See `loomrl tokens`."}},
        },
    }


def _paths(routes: Iterable[Route], parts: Parts, schemas: Mapping[Any, Json]) -> Json:
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, parts, schemas)
    return paths


def _operation(route: Route, parts: Parts, schemas: Mapping[Any, Json]) -> Json:
    operation: Json = {
        "operationId": _id(route.method, route.path),
        "summary": cleandoc(route.handler.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        "tags": [route.guard.role if route.guard else "open"],
        "parameters": [*_places(route, parts), *_query(route), *map(_header, route.headers)],
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        content = _content(route.body, "validation", schemas)
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    if route.guard is not None and route.guard.is_closed(parts.tokens):
        operation["security"] = [{_TOKEN: [route.guard.role]}]
    return operation


def _id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _places(route: Route, parts: Parts) -> list[Json]:
    """What stands in the path. There is one model, and its versions are those that are loaded."""
    known = {
        "model": {"enum": [parts.settings.policy]},
        "version": {"examples": sorted(parts.roles.current.versions())},
    }
    names = re.findall(r"{(\w+)}", route.path)
    schemas = [{"type": "string", "minLength": 1, **known.get(name, {})} for name in names]
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


def _responses(route: Route, schemas: Mapping[Any, Json]) -> Json:
    statuses = {*_ALWAYS, 421, *route.problems}
    statuses |= {401} if route.guard else set()
    statuses |= {404} if "{" in route.path else set()
    statuses |= {429, 507} if route.method != "GET" else set()
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


def _refusal(status: int) -> Json:
    content = {JSON_TYPE: {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    headers = {name: {"schema": {"type": "string"}} for name in _TOLD.get(status, ())}
    return {"description": _REFUSALS[status], "content": content, "headers": headers}


def _content(kind: Any, mode: str, schemas: Mapping[Any, Json]) -> Json:
    return {media: {"schema": schemas[one, mode]} for media, one in _by_media(kind).items()}


def _by_media(kind: Any) -> Mapping[str, Any]:
    return kind if isinstance(kind, Mapping) else {JSON_TYPE: kind}


def _kinds(routes: Iterable[Route]) -> Iterable[tuple[Any, str]]:
    """Every type that goes in (`validation`) or comes out (`serialization`)."""
    yield Refusal, "serialization"
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


def _served(components: Json, champion: ServedPolicy | None) -> Json:
    """The schemas of what this policy observes and does; zeros are the example of an observation of few numbers."""
    if champion is None:
        return {}
    shape, zeros = champion.shape, np.zeros(champion.shape, champion.dtype)
    array = _array(shape, {"b": "boolean", "f": "number"}.get(champion.dtype.kind, "integer"))
    other = {"Flat": {}, "Text": {"type": "string"}}.get(champion.manifest.environment.observation["type"])
    observation = array if other is None else {"anyOf": [array, other]}
    tensor = {
        "name": {"type": "string", "enum": [champion.input_name]},
        "datatype": {"type": "string", "enum": [DATATYPES[champion.dtype.name]]},
        "shape": _array((len(shape) + 1,), "integer") | {"examples": [[1, *shape]]},
    }
    if zeros.size <= SMALL:
        observation |= {"examples": [zeros.tolist()]}
        tensor["data"] = {"examples": [zeros.ravel().tolist()]}
    action = {"action": {"anyOf": [_action(champion), {"type": "null"}]}}
    changed = {"OneAsk": {"observation": observation}, "Tensor": tensor, "OverrideOrder": action, "Fallback": action}
    return {
        name: {**components[name], "properties": {**components[name]["properties"], **properties}}
        for name, properties in changed.items()
    }


def _action(policy: ServedPolicy) -> Json:
    if policy.kind == "discrete":
        space = policy.manifest.environment.action
        start = int(space.get("start", 0))
        return {"type": "integer", "minimum": start, "maximum": start + int(space["n"]) - 1}
    shape = tuple(policy.manifest.outputs["action"]["shape"][1:])
    return _array(shape, "integer" if policy.chooses else "number")


def _array(shape: tuple[int, ...], kind: str) -> Json:
    if not shape:
        return {"type": kind}
    return {"type": "array", "items": _array(shape[1:], kind), "minItems": shape[0], "maxItems": shape[0]}

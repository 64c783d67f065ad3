"""The policy server's description of its API: of its routes, and of what it serves just now."""

from collections.abc import Iterable

import numpy as np

from loomrl.serving.api.replies import RefusalReply
from loomrl.serving.api.tensors import DATATYPES
from loomrl.serving.context import ServerContext
from loomrl.serving.policy.model import SMALL, ServedPolicy
from loomrl.system.http.openapi import Api, Json, describe
from loomrl.system.http.routing import Route

_TOLD = {
    403: "The token has not the role, the page of another server asks, or the version does not act.",
    413: "The body is too large, packed or unpacked, or asks for more decisions than there may be at once.",
    429: "More decisions than the rate limit allows, or large bodies that were refused; see `Retry-After`.",
    503: "Not now: no champion, a version that is not loaded, no fallback, a record that cannot be written, or too "
    "much that is being sent at once.",
}
_ALWAYS = (400, 403, 408, 413, 414, 415, 421, 431, 500, 503)


def document(routes: Iterable[Route], context: ServerContext) -> Json:
    """The description of the API in OpenAPI, as JSON values. There is one model, and its versions are those that are
    loaded.
    """
    api = Api(
        f"LoomRL policy server: {context.settings.policy}",
        "Decisions of a reinforcement-learning policy, and the controls of those who operate it.",
        context.tokens,
        RefusalReply,
        _ALWAYS,
        of_changes=(429, 507),
        places={
            "model": {"enum": [context.settings.policy]},
            "version": {"examples": sorted(context.roles.current.versions())},
        },
        told=_TOLD,
    )
    found = describe(routes, api)
    schemas = found["components"]["schemas"]
    found["components"]["schemas"] = {**schemas, **_served(schemas, context.roles.current.champion)}
    return found


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

"""The routes of people and machines that operate a server: status, metrics, overrides, repository, shadow records."""

import asyncio
import os
import time
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.schema import Document
from loomrl.serving.actions import check_action
from loomrl.serving.asgi import Response, Scope, as_json
from loomrl.serving.guard import check_observer, check_operator, sees_orders
from loomrl.serving.history import read_lines
from loomrl.serving.model import ServedPolicy
from loomrl.serving.overrides import Override
from loomrl.serving.parts import Parts
from loomrl.serving.plan import KillSwitch, Plan
from loomrl.serving.problems import Problem
from loomrl.serving.records import DECISION, SHADOW, operation
from loomrl.serving.requests import parse_json
from loomrl.serving.shadow_process import Shadow
from loomrl.serving.shadow_state import shadow_folder
from loomrl.serving.tensors import parameters_of
from loomrl.serving.tokens import OBSERVE, OPERATE

_MAX_LINES = 10_000
D = TypeVar("D", bound=Document)


class Control:
    """Handlers beside the hot path; what blocks runs in a thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def status(self, scope: Scope, body: bytes, started: float) -> Response:
        """Everything a person asks first; who ordered what, and why, only for observers where there are tokens."""
        check_observer(scope, self._parts.tokens)
        state = describe(self._parts)
        if not sees_orders(scope, self._parts.tokens):
            state["overrides"] = state["plan"] = state["kill_switch"] = None
        return as_json(state)

    async def metrics(self, scope: Scope, body: bytes, started: float) -> Response:
        """Prometheus text format."""
        check_observer(scope, self._parts.tokens)
        self._parts.metrics.show_monitors(self._parts.guardian.shown)
        return Response(self._parts.metrics.text(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def monitors(self, scope: Scope, body: bytes, started: float) -> Response:
        """Every monitor of every version that acts: its evidence, its threshold, how it went; who was taken out."""
        check_observer(scope, self._parts.tokens)
        return as_json(self._parts.guardian.describe())

    async def index(self, scope: Scope, body: bytes, started: float) -> Response:
        """V2 model repository extension: what is loaded and, unless `ready` is asked for, what is not, and why."""
        ready = parse_json(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise Problem(400, f"`ready` must be true or false, found {ready!r}")
        keeper, name = self._parts.roles, self._parts.settings.policy
        loaded = [(version, "READY", "") for version in sorted(keeper.current.versions())]
        others = [(entry.version, "UNAVAILABLE", entry.reason) for entry in list(keeper.refused.values())]
        if keeper.unloaded is not None:
            others.append((keeper.unloaded, "UNAVAILABLE", "unloaded"))
        shown = loaded if ready else loaded + others
        return as_json([{"name": name, "version": one[0], "state": one[1], "reason": one[2]} for one in shown])

    async def load(self, scope: Scope, body: bytes, started: float) -> Response:
        """Follow the registry now; a version that was refused or unloaded before is tried again."""
        actor = self._operator(scope, body)
        if body and (parameters := parameters_of(parse_json(body), "the request")):
            raise Problem(400, f"{next(iter(parameters))!r} is not read: what is loaded is what the registry names")
        self._record("load", actor)
        await asyncio.to_thread(self._parts.roles.refresh, True)
        keeper = self._parts.roles
        if keeper.unreachable is not None:
            raise Problem(503, keeper.unreachable)
        if keeper.refused:
            reasons = "; ".join(f"version {entry.version}: {entry.reason}" for entry in keeper.refused.values())
            raise Problem(409, f"refused, what was loaded goes on: {reasons}")
        return as_json({"roles": _roles(self._parts)})

    async def unload(self, version: str | None, scope: Scope, body: bytes, started: float) -> Response:
        """Let a version go that decides for nobody, until it is loaded again."""
        actor = self._operator(scope, body)
        name, roles = self._parts.settings.policy, self._parts.roles
        champion = roles.current.champion
        if version is None or (champion is not None and champion.version == version):
            raise Problem(
                409,
                f"the champion of {name} stays: agents would be left without decisions. Promote another version or "
                f"stop the server; a challenger goes by /v2/repository/models/{name}/versions/VERSION/unload",
            )
        orders = self._parts.controls.orders
        if pins := [override.id for override in orders.active_overrides() if override.version == version]:
            raise Problem(409, f"version {version!r} is pinned by override {pins[0]}: clear that first")
        if version in orders.plan.versions():
            raise Problem(409, f"version {version!r} is in the plan, see `loomrl plan show`: take it out first")
        self._record("unload", actor, version=version)
        if not await asyncio.to_thread(roles.unload, version):
            raise Problem(404, f"version {version!r} is not loaded; see /v2/repository/index")
        return as_json({"roles": _roles(self._parts)})

    async def shadow_records(self, scope: Scope, body: bytes, started: float) -> Response:
        """Audit lines of decisions, then of their mirrors, `?after=SEQUENCE&after_mirror=SEQUENCE&limit=N`.

        They stand in two chains, each with sequences of its own; at most `limit` lines of each are given.
        """
        self._operator(scope, body, OBSERVE)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        try:
            after, after_mirror = (int(query.get(name, ["-1"])[0]) for name in ("after", "after_mirror"))
            limit = min(_MAX_LINES, max(1, int(query.get("limit", [str(_MAX_LINES)])[0])))
        except ValueError as error:
            raise Problem(400, "`after`, `after_mirror` and `limit` must be whole numbers") from error
        folder = self._parts.audit.folder
        lines = await asyncio.to_thread(read_lines, folder, after, limit, [DECISION])
        lines += await asyncio.to_thread(read_lines, shadow_folder(folder), after_mirror, limit, [SHADOW])
        return Response(b"".join(lines), content_type=b"application/x-ndjson")

    async def list_overrides(self, scope: Scope, body: bytes, started: float) -> Response:
        """The overrides in force."""
        self._operator(scope, body, OBSERVE)
        active = self._parts.controls.orders.active_overrides()
        return as_json({"overrides": [override.to_json() for override in active]})

    async def set_override(self, scope: Scope, body: bytes, started: float) -> Response:
        """Put an override in force: from the next decision on."""
        actor = self._operator(scope, body)
        override = _parse_override(parse_json(body))
        await self._check_versions(set() if override.version is None else {override.version})
        self._check_action(override.action)
        await asyncio.to_thread(self._parts.controls.set_override, override, actor)
        return as_json(override.to_json(), 201)

    async def clear_overrides(self, scope: Scope, body: bytes, started: float) -> Response:
        """Lift all overrides."""
        return await self._clear(scope, body, None)

    async def clear_override(self, override_id: str, scope: Scope, body: bytes, started: float) -> Response:
        """Lift one override."""
        return await self._clear(scope, body, override_id)

    async def _clear(self, scope: Scope, body: bytes, override_id: str | None) -> Response:
        actor, controls = self._operator(scope, body), self._parts.controls
        try:
            lifted = await asyncio.to_thread(
                controls.clear_overrides, override_id, actor, "lifted by the server's route"
            )
        except ConfigError as error:
            raise Problem(404, str(error)) from error
        return as_json({"lifted": [override.id for override in lifted]})

    async def plan(self, scope: Scope, body: bytes, started: float) -> Response:
        """Who decides besides the champion."""
        self._operator(scope, body, OBSERVE)
        return as_json(self._parts.controls.describe_plan())

    async def set_plan(self, scope: Scope, body: bytes, started: float) -> Response:
        """Put a plan in force. With the `revision` it was made from, only where nobody changed it since."""
        actor, document = self._operator(scope, body), parse_json(body)
        revision = document.pop("revision", None)
        if not isinstance(revision, int | None) or isinstance(revision, bool):
            raise Problem(400, f"`revision` must be that of the plan it was made from, found {revision!r}")
        plan = _validated(Plan, document)
        await self._check_versions(plan.versions())
        self._check_action(plan.fallback.action if plan.fallback else None)
        try:
            await asyncio.to_thread(self._parts.controls.set_plan, plan, actor, revision)
        except ConfigError as error:
            raise Problem(409, str(error)) from error
        return as_json(self._parts.controls.describe_plan())

    async def set_kill_switch(self, scope: Scope, body: bytes, started: float) -> Response:
        """Turn the kill switch on or off, `{"on": true, "person": ..., "reason": ...}`."""
        actor, document = self._operator(scope, body), parse_json(body)
        on = document.pop("on", None)
        if not isinstance(on, bool):
            raise Problem(400, f"`on` must be true or false, found {on!r}")
        switch = _validated(KillSwitch, document)
        controls = self._parts.controls
        await asyncio.to_thread(controls.set_kill_switch, switch if on else None, actor, switch.reason)
        return as_json(controls.describe_plan())

    async def _check_versions(self, versions: set[str]) -> None:
        """Have versions loaded before anything names them; they must see and do what the champion does."""
        keeper = self._parts.roles
        try:
            await asyncio.to_thread(keeper.ensure, versions)
        except ArtifactError as error:
            raise Problem(422, str(error)) from error
        champion = keeper.current.champion
        for version in sorted(versions):
            policy = keeper.current.by_version(version)
            if champion and policy and not _is_alike(policy, champion):
                raise Problem(
                    422, f"version {version} observes or acts otherwise than the champion, version {champion.version}"
                )

    def _check_action(self, action: Any) -> None:
        champion = self._parts.roles.current.champion
        if action is not None and champion is not None:
            check_action(action, champion)

    def _operator(self, scope: Scope, body: bytes, role: str = OPERATE) -> str:
        """Whoever asks, if they may."""
        return check_operator(scope, self._parts.tokens, body, role)

    def _record(self, what: str, actor: str, **fields: Any) -> None:
        """On record before it is done."""
        told = operation(self._parts.settings.policy, what, actor, "asked by the server's route", **fields)
        self._parts.audit.append([told])


def _parse_override(document: dict[str, Any]) -> Override:
    lifetime = document.pop("expires_in_seconds", None)
    if lifetime is not None:
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or lifetime <= 0:
            raise Problem(400, f"`expires_in_seconds` must be a positive number, found {lifetime!r}")
        document["expires"] = time.time() + lifetime
    return _validated(Override, document)


def _validated(kind: type[D], document: dict[str, Any]) -> D:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise Problem(400, f"{place}: {first['msg']}") from error


def _is_alike(one: ServedPolicy, other: ServedPolicy) -> bool:
    return (one.shape, one.kind, one.manifest.environment.action) == (
        other.shape,
        other.kind,
        other.manifest.environment.action,
    )


def describe(parts: Parts) -> dict[str, Any]:
    """The server's state as JSON values."""
    head, keeper, orders = parts.audit.head, parts.roles, parts.controls.orders
    anchored = parts.keeper.anchored.get(head.server)
    return {
        "policy": parts.settings.policy,
        "pid": os.getpid(),
        "uptime_seconds": time.time() - parts.started,
        "ready": keeper.current.champion is not None,
        "roles": _roles(parts),
        "loaded": sorted(keeper.current.versions()),
        "refused": [{"version": entry.version, "reason": entry.reason} for entry in list(keeper.refused.values())],
        "loading": keeper.loading,
        "registry_error": keeper.unreachable,
        "num_swaps": keeper.num_swaps,
        "audit": {
            "server": head.server,
            "segment": head.segment,
            "sequence": head.sequence,
            "hash": head.digest,
            "durability": parts.settings.durability,
            "durable_sequence": parts.audit.durable_sequence,
            "sync_error": parts.keeper.sync_error,
            "anchored_sequence": anchored.sequence if anchored else None,
            "unsigned": parts.keeper.unsigned,
            "anchor_error": parts.errors.get("anchor"),
            "repaired": parts.audit.repaired,
            "last_error": parts.last_audit_error,
        },
        "shadow": _shadow(parts.shadow),
        "quarantined": [
            {"version": entry.version, "to": entry.to, "time": entry.time, "reason": entry.trigger.reason}
            for entry in parts.quarantine.entries()
        ],
        "plan": orders.plan.to_json(),
        "kill_switch": None if orders.kill_switch is None else orders.kill_switch.to_json(),
        "overrides": [override.to_json() for override in orders.active_overrides()],
        "errors": dict(parts.errors),
        "rate_per_agent": parts.settings.rate,
        "rate_in_all": parts.settings.total_rate,
        "latency_seconds": parts.metrics.latency_seconds(),
    }


def _shadow(shadow: Shadow) -> dict[str, Any]:
    state = shadow.state
    head = state.own_head()
    return {
        "pid": shadow.pid,
        "num_mirrored": state.num_mirrored,
        "num_pending": shadow.num_pending,
        "num_dropped": state.num_dropped,
        "num_errors": state.num_errors,
        "num_restarts": shadow.num_restarts,
        "last_error": state.last_error,
        "refused": [{"version": version, "reason": reason} for (version, _), reason in shadow.refused.items()],
        "sequence": -1 if head is None else head.sequence,
    }


def _roles(parts: Parts) -> dict[str, Any]:
    roles = parts.roles.current
    return {"champion": _policy(roles.champion), "challenger": _policy(roles.challenger)}


def _policy(policy: ServedPolicy | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    return {"version": policy.version, "onnx_sha256": policy.manifest.onnx_sha256}

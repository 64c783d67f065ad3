"""The routes of people and machines that operate a server: status, metrics, overrides, repository, shadow records."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import Field, ValidationError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.serving.api.bodies import Index, Load
from loomrl.serving.api.replies import (
    IndexEntry,
    Lifted,
    Loaded,
    Monitors,
    OverrideInForce,
    Overrides,
    PlanInForce,
)
from loomrl.serving.api.status import Status, describe, show_roles
from loomrl.serving.api.tensors import parameters_of
from loomrl.serving.context import ServerContext
from loomrl.serving.controls.order_file import SavedControls
from loomrl.serving.controls.overrides import OverrideOrder
from loomrl.serving.controls.plan import KillSwitchOrder, PlanOrder
from loomrl.serving.decisions.actions import check_action
from loomrl.serving.decisions.requests import parse_json
from loomrl.serving.mirror.state import shadow_folder
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.workers.peers import ENSURE, ORDERS, is_from_peer
from loomrl.storage.audit.history import read_lines
from loomrl.storage.audit.records import DECISION, SHADOW, operation
from loomrl.system.home import without_folders
from loomrl.system.http.asgi import Response, Scope, as_json
from loomrl.system.http.guard import OBSERVER, OPERATOR, WATCHER, check_operator, sees_orders
from loomrl.system.http.problems import Problem
from loomrl.system.http.routing import Link, Route
from loomrl.system.http.tokens import OBSERVE, OPERATE
from loomrl.system.schema import Document, first_problem

if TYPE_CHECKING:
    from loomrl.serving.api.worker_group import WorkerGroup

_MAX_LINES = 10_000
_MAX_ENSURING = 32  # orders that name versions at a time: each has a thread for some seconds at most
_ENSURED_SECONDS = 6.0  # that one waits for its thread and its versions: those take half a second more than five
_BY_ROUTE = "lifted by the server's route"
METRICS, LINES = b"text/plain; version=0.0.4; charset=utf-8", b"application/x-ndjson"
D = TypeVar("D", bound=Document)


class Page(Document):
    """Which records are wanted: those after these sequences, and how many of each chain at most."""

    after: int = Field(default=-1, ge=-1)
    after_mirror: int = Field(default=-1, ge=-1)
    limit: int = Field(default=_MAX_LINES, ge=1)
    worker: int | None = Field(default=None, ge=0)  # whose chains; named where there are several


class ControlRoutes:
    """Handlers beside the hot path; what blocks runs in a thread. The kill switch, and overrides that name no version,
    need none of those that others may hold.
    """

    def __init__(self, context: ServerContext, workers: "WorkerGroup | None" = None) -> None:
        """`workers` are the other workers of this port."""
        self._context, self._workers = context, workers
        self._ensuring = ThreadPoolExecutor(_MAX_ENSURING, "ensure")

    def routes(self) -> list[Route]:
        """The routes of status, metrics, monitors, overrides, plan, kill switch, shadow records and the model
        repository, with their handlers; of several workers also those on which they have each other load versions and
        obey orders.
        """
        override, model = "/override/{override_id}", "/v2/repository/models/{model}"
        unload = f"{model}/versions/{{version}}/unload"
        return [
            Route("GET", "/status", self.status, WATCHER, {200: Status}),
            Route("GET", "/metrics", self.metrics, WATCHER, {200: {METRICS.decode(): str}}),
            Route("GET", "/monitors", self.monitors, WATCHER, {200: Monitors}),
            Route("GET", "/override", self.list_overrides, OBSERVER, {200: Overrides}),
            Route(
                "POST", "/override", self.set_override, OPERATOR, {201: OverrideInForce}, OverrideOrder,
                problems=(422,), links={"clear": Link("DELETE", override, {"override_id": "$response.body#/id"})},
            ),
            Route("DELETE", "/override", self.clear_overrides, OPERATOR, {200: Lifted}),
            Route("DELETE", override, self.clear_override, OPERATOR, {200: Lifted}),
            Route("GET", "/plan", self.plan, OBSERVER, {200: PlanInForce}),
            Route("PUT", "/plan", self.set_plan, OPERATOR, {200: PlanInForce}, PlanOrder, problems=(409, 422)),
            Route("PUT", "/kill-switch", self.set_kill_switch, OPERATOR, {200: PlanInForce}, KillSwitchOrder),
            Route("GET", "/shadow/records", self.shadow_records, OBSERVER, {200: {LINES.decode(): str}}, query=Page),
            Route(
                "POST", "/v2/repository/index", self.index, WATCHER, {200: list[IndexEntry]}, Index, needs_body=False,
            ),
            Route("POST", f"{model}/load", self.load, OPERATOR, {200: Loaded}, Load, needs_body=False, problems=(409,)),
            Route("POST", unload, self.unload, OPERATOR, {200: Loaded}, problems=(409,)),
            Route("POST", f"{model}/unload", self.unload, OPERATOR, problems=(409,)),  # the champion, which stays
            *([] if self._workers is None else self._routes_of_workers()),
        ]  # fmt: skip

    def _routes_of_workers(self) -> list[Route]:
        return [
            Route("POST", ENSURE, self.ensure_versions, is_public=False),
            Route("POST", ORDERS, self.take_orders, is_public=False),
        ]

    async def status(self, scope: Scope, body: bytes, started: float) -> Response:
        """Everything a person asks first; who ordered what, and why, only for observers where there are tokens."""
        return as_json(describe(self._context, with_orders=sees_orders(scope, self._context.tokens)))

    async def metrics(self, scope: Scope, body: bytes, started: float) -> Response:
        """All counters and gauges of this server, as Prometheus text."""
        if self._context.guardian is not None:
            self._context.metrics.show_monitors(self._context.guardian.shown)
        return Response(self._context.metrics.text(), content_type=METRICS)

    async def monitors(self, scope: Scope, body: bytes, started: float) -> Response:
        """Every monitor of every version that acts: its evidence, its threshold, how it went; who was taken out."""
        assert self._context.guardian is not None, "of several workers the one that has them is asked"
        return as_json(self._context.guardian.describe())

    async def index(self, scope: Scope, body: bytes, started: float) -> Response:
        """V2 model repository extension: what is loaded and, unless `ready` is asked for, what is not, and why."""
        ready = parse_json(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise Problem(400, f"`ready` must be true or false, found {ready!r}")
        keeper, name = self._context.roles, self._context.settings.policy
        loaded = [(version, "READY", "") for version in sorted(keeper.current.versions())]
        refused = list(keeper.refused.values())
        others = [(entry.version, "UNAVAILABLE", without_folders(entry.reason)) for entry in refused]
        if keeper.unloaded is not None:
            others.append((keeper.unloaded, "UNAVAILABLE", "unloaded"))
        shown = loaded if ready else loaded + others
        return as_json([{"name": name, "version": one[0], "state": one[1], "reason": one[2]} for one in shown])

    async def load(self, scope: Scope, body: bytes, started: float) -> Response:
        """Follow the registry now; a version that was refused or unloaded before is tried again."""
        actor = self._operator(scope)
        if body and (parameters := parameters_of(parse_json(body), "the request")):
            raise Problem(400, f"{next(iter(parameters))!r} is not read: what is loaded is what the registry names")
        self._record("load", actor)
        await asyncio.to_thread(self._context.roles.refresh, True)
        keeper = self._context.roles
        if keeper.unreachable is not None:
            raise Problem(503, keeper.unreachable)
        if keeper.refused:
            reasons = "; ".join(f"version {entry.version}: {entry.reason}" for entry in keeper.refused.values())
            raise Problem(409, f"refused, what was loaded goes on: {reasons}")
        return as_json({"roles": show_roles(self._context)})

    async def unload(self, scope: Scope, body: bytes, started: float, version: str | None = None) -> Response:
        """Let a version go that decides for nobody, until it is loaded again."""
        actor = self._operator(scope)
        name, roles = self._context.settings.policy, self._context.roles
        champion = roles.current.champion
        if version is None or (champion is not None and champion.version == version):
            raise Problem(
                409,
                f"the champion of {name} stays: agents would be left without decisions. Promote another version or "
                f"stop the server; a challenger goes by /v2/repository/models/{name}/versions/VERSION/unload",
            )
        orders = self._context.controls.orders
        if pins := [override.id for override in orders.active_overrides() if override.version == version]:
            raise Problem(409, f"version {version!r} is pinned by override {pins[0]}: clear that first")
        if version in orders.plan.versions():
            raise Problem(409, f"version {version!r} is in the plan, see `loomrl plan show`: take it out first")
        self._record("unload", actor, version=version)
        if not await asyncio.to_thread(roles.unload, version):
            raise Problem(404, f"version {version!r} is not loaded; see /v2/repository/index")
        return as_json({"roles": show_roles(self._context)})

    async def shadow_records(self, scope: Scope, body: bytes, started: float) -> Response:
        """Audit lines of decisions, then of their mirrors: they stand in two chains, each with sequences of its own."""
        self._operator(scope, OBSERVE)
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        page = _validated(Page, query, strict=False)
        limit = min(page.limit, _MAX_LINES)
        folder = self._context.audit.folder
        lines = await asyncio.to_thread(read_lines, folder, page.after, limit, [DECISION])
        lines += await asyncio.to_thread(read_lines, shadow_folder(folder), page.after_mirror, limit, [SHADOW])
        return Response(b"".join(lines), content_type=LINES)

    async def list_overrides(self, scope: Scope, body: bytes, started: float) -> Response:
        """List the overrides in force, as `overrides`.

        Raises:
            Problem: 401 or 403 where the token may not observe.
        """
        self._operator(scope, OBSERVE)
        return as_json({"overrides": self._context.controls.orders.active_overrides()})

    async def set_override(self, scope: Scope, body: bytes, started: float) -> Response:
        """Put an override in force: from the next decision on."""
        actor = self._operator(scope)
        override = _validated(OverrideOrder, parse_json(body)).override()
        not_loaded = await self._check_versions(set() if override.version is None else {override.version})
        self._check_action(override.action)
        self._context.controls.put_override(override, actor)
        await self._context.controls.settled()
        return as_json({**override.to_json(), **not_loaded}, 201)

    async def clear_overrides(self, scope: Scope, body: bytes, started: float) -> Response:
        """Lift every override in force; the reply lists their ids."""
        return await self._clear(scope, body, None)

    async def clear_override(self, scope: Scope, body: bytes, started: float, override_id: str) -> Response:
        """Lift the override of this id; the reply lists the ids that were lifted."""
        return await self._clear(scope, body, override_id)

    async def _clear(self, scope: Scope, body: bytes, override_id: str | None) -> Response:
        actor, controls = self._operator(scope), self._context.controls
        if not controls.is_in_force(override_id):
            await controls.looked()
        lifted = controls.lift_overrides(override_id, actor, _BY_ROUTE)
        await controls.settled()
        if override_id is not None and not lifted:
            raise Problem(404, str(controls.no_such(override_id)))
        return as_json({"lifted": [override.id for override in lifted]})

    async def plan(self, scope: Scope, body: bytes, started: float) -> Response:
        """The plan in force: which versions decide besides the champion, and its revision."""
        self._operator(scope, OBSERVE)
        return as_json(self._context.controls.describe_plan())

    async def set_plan(self, scope: Scope, body: bytes, started: float) -> Response:
        """Put a plan in force. With the `revision` it was made from, only where nobody changed it since."""
        actor = self._operator(scope)
        order = _validated(PlanOrder, parse_json(body))
        plan = order.plan()
        not_loaded = await self._check_versions(plan.versions())
        self._check_action(plan.fallback.action if plan.fallback else None)
        try:
            await asyncio.to_thread(self._context.controls.set_plan, plan, actor, order.revision)
        except ConfigError as error:
            raise Problem(409, str(error)) from error
        except ArtifactError as error:
            raise Problem(503, f"the plan in force stays: {error}") from error
        return as_json({**self._context.controls.describe_plan(), **not_loaded})

    async def set_kill_switch(self, scope: Scope, body: bytes, started: float) -> Response:
        """Turn the kill switch on or off, `{"on": true, "person": ..., "reason": ...}`."""
        actor = self._operator(scope)
        order = _validated(KillSwitchOrder, parse_json(body))
        controls, switch = self._context.controls, order.switch() if order.on else None
        if switch is None:
            await controls.looked()
        controls.put_kill_switch(switch, actor, order.reason)
        await controls.settled()
        return as_json(controls.describe_plan())

    async def _check_versions(self, versions: set[str]) -> dict[str, dict[str, str]]:
        """Have versions loaded before anything names them; they must see and do what the champion does.

        The order does not wait for those that take long: `not_loaded`, for its answer, says which and why.
        """
        keeper, asked = self._context.roles, [self._ensure(versions)]
        if versions and self._workers is not None:
            asked.append(self._workers.ensure(versions))
        not_loaded = {version: why for told in await asyncio.gather(*asked) for version, why in told.items()}
        champion = keeper.current.champion
        for version in sorted(versions):
            policy = keeper.current.by_version(version)
            if champion and policy and not _is_alike(policy, champion):
                raise Problem(
                    422, f"version {version} observes or acts otherwise than the champion, version {champion.version}"
                )
        return {"not_loaded": not_loaded} if not_loaded else {}

    async def ensure_versions(self, scope: Scope, body: bytes, started: float) -> Response:
        """Another worker has been asked to put something in force that names versions: load them, too."""
        _check_peer(scope)
        return as_json({"not_loaded": await self._ensure(set(parse_json(body)["versions"]))})

    async def take_orders(self, scope: Scope, body: bytes, started: float) -> Response:
        """Another worker has been asked to put orders in force, or asks which there are: they are in force here before
        it is told of all that are known here."""
        _check_peer(scope)
        return as_json(self._context.controls.take(_validated(SavedControls, parse_json(body), strict=False)))

    async def _ensure(self, versions: set[str]) -> dict[str, str]:
        if not versions:
            return {}
        ensured = asyncio.get_running_loop().run_in_executor(self._ensuring, self._context.roles.ensure, versions)
        try:
            return await asyncio.wait_for(ensured, _ENSURED_SECONDS)
        except ArtifactError as error:
            raise Problem(422, str(error)) from error
        except TimeoutError:
            return dict.fromkeys(versions, f"not loaded within {_ENSURED_SECONDS:g} s")

    def _check_action(self, action: Any) -> None:
        known = self._context.roles.current.whose_actions()
        if action is not None and known is not None:
            check_action(action, known)

    def _operator(self, scope: Scope, role: str = OPERATE) -> str:
        """Whoever asks, if they may."""
        return check_operator(scope, self._context.tokens, role)

    def _record(self, what: str, actor: str, **fields: Any) -> None:
        """On record before it is done."""
        told = operation(self._context.settings.policy, what, actor, "asked by the server's route", **fields)
        self._context.audit.append([told])


def is_order(scope: Scope) -> bool:
    """Whether a request takes decisions over, or gives them back: that waits for no disk to take its record."""
    path: str = scope["path"]
    return path in ("/kill-switch", "/override", ORDERS) or path.startswith("/override/")


def _check_peer(scope: Scope) -> None:
    if not is_from_peer(scope):
        raise Problem(404, f"{scope['path']} is for workers among themselves")


def _validated(kind: type[D], document: Mapping[str, Any], strict: bool = True) -> D:
    try:
        return kind.model_validate(document, strict=strict)
    except ValidationError as error:
        raise Problem(400, first_problem(error, kind.__name__)) from error


def _is_alike(one: ServedPolicy, other: ServedPolicy) -> bool:
    return (one.shape, one.kind, one.manifest.environment.action) == (
        other.shape,
        other.kind,
        other.manifest.environment.action,
    )

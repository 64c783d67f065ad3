"""The server as an ASGI application: the routes of agents (`/decide`, `/feedback`, V2) and what they share."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson

from loomrl.serving.api import bodies, policy_api, replies
from loomrl.serving.api import inference_protocol as v2
from loomrl.serving.api.batching import Batcher, DecisionRequest
from loomrl.serving.api.budget import Budget
from loomrl.serving.api.control import ControlRoutes, is_order
from loomrl.serving.api.dashboard.routes import Dashboard
from loomrl.serving.api.rollback import Rollback
from loomrl.serving.api.worker_group import WorkerGroup
from loomrl.serving.context import ServerContext
from loomrl.serving.decisions.batches import answers_of
from loomrl.serving.decisions.decider import Outcome
from loomrl.serving.decisions.packing import num_lists
from loomrl.serving.decisions.packing import packed as packed_observations
from loomrl.serving.decisions.requests import (
    DecisionRequests,
    check_shapes,
    parse_feedback,
    parse_json,
    parse_requests,
)
from loomrl.serving.policy.model import NoAnswer, ServedPolicy
from loomrl.serving.workers.peers import is_from_peer
from loomrl.storage.audit.log import AuditUnwritable, NotDurable
from loomrl.system.http.asgi import (
    ClientGone,
    Receive,
    Response,
    Scope,
    Send,
    as_json,
    as_problem,
    check_length,
    check_size,
    header,
    packed,
    read_body,
    respond,
    unread,
)
from loomrl.system.http.browsers import check_host, is_loopback
from loomrl.system.http.guard import AGENT, Admission, admit, check_agents
from loomrl.system.http.intake import Intake, IntakeLimits
from loomrl.system.http.large_bodies import LARGE, check_lists
from loomrl.system.http.problems import Problem
from loomrl.system.http.routing import BYTES_TYPE, JSON_TYPE, Link, Route, RouteTable

log = logging.getLogger(__name__)
HotHandler = Callable[[Scope, bytes, float], Response | DecisionRequest]
Handler = Callable[[Scope, bytes, float], Response | DecisionRequest | Awaitable[Response]]
_LISTS_BESIDE = 1_000  # and objects, of a request, beside those of its rows
_PENDING_BYTES = 8 * 2**20  # of requests without an answer, in all connections; more where bodies may be larger
_LARGE = 2**16  # packing more would keep decisions waiting
_NOT_DECIDED = (409, 422, 429)
_FEEDBACK = Link("POST", "/feedback", body={"decision_id": "$response.body#/decision_id", "reward": 1.0})


class PolicyServer:
    """Answers agents. A raw ASGI route table: on the hot path nothing stands between uvicorn and the policy."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._on_loopback = is_loopback(context.settings.host)
        self._workers = (
            None if context.worker_address is None else WorkerGroup(context, context.worker_address, self._respond)
        )
        self._control = ControlRoutes(context, self._workers)
        self.batcher = Batcher(self._answer_hot)
        bounds = IntakeLimits(max_pending_bytes=max(_PENDING_BYTES, 4 * context.settings.max_body_bytes))
        self._budget = Budget(context.settings.body_bytes_per_second, context.settings.max_body_bytes)
        self.intake = Intake(bounds, count=context.metrics.count_problem)
        self._infer_path = f"/v2/models/{context.settings.policy}/"
        self._hot: dict[str, HotHandler] = {
            "/decide": self._decide,
            "/feedback": self._feedback,
            f"{self._infer_path}infer": self._infer,
        }
        beside = [*self._control.routes(), *Rollback(context).routes(), *Dashboard(context).routes()]
        self._router = RouteTable([*self._routes(), *beside])

    def _routes(self) -> list[Route]:
        """Where agents, and those who look at models, are answered."""
        model = "/v2/models/{model}"
        return [
            Route(
                "POST", "/decide", self._decide, AGENT, {200: replies.Decided}, bodies.Decide,
                headers=("X-Request-Id",), problems=_NOT_DECIDED, links={"feedback": _FEEDBACK},
            ),
            Route(
                "POST", "/feedback", self._feedback, AGENT, {200: replies.Recorded}, bodies.Feedback,
                problems=(404, 409),
            ),
            Route("GET", "/openapi.json", self._description, answers={200: dict[str, Any]}),
            Route("GET", "/v2", self._metadata, answers={200: replies.ServerMetadata}),
            Route("GET", "/v2/health/live", self._live, answers={200: replies.Live}),
            Route("GET", "/v2/health/ready", self._ready, answers={200: replies.Ready, 503: replies.Ready}),
            Route("GET", "/v2/models/stats", self._model_statistics, answers={200: replies.StatisticsReply}),
            *self._routes_of(model),
            *self._routes_of(f"{model}/versions/{{version}}"),
        ]  # fmt: skip

    def _routes_of(self, model: str) -> list[Route]:
        """Those below the path of a model, or of one of its versions."""
        return [
            Route("GET", model, self._model_metadata, answers={200: replies.ModelMetadata}, problems=(503,)),
            Route("GET", f"{model}/ready", self._model_ready, answers={200: replies.ModelReady}, problems=(503,)),
            Route(
                "GET", f"{model}/config", self._model_config, answers={200: replies.TritonModelConfig}, problems=(503,)
            ),
            Route("GET", f"{model}/stats", self._model_statistics, answers={200: replies.StatisticsReply}),
            Route(
                "POST", f"{model}/infer", self._infer, AGENT, {200: {JSON_TYPE: replies.Inferred, BYTES_TYPE: bytes}},
                {JSON_TYPE: bodies.Infer, BYTES_TYPE: bytes}, headers=(v2.JSON_LENGTH,), problems=_NOT_DECIDED,
            ),
        ]  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's life span."""
        if scope["type"] == "lifespan":
            await self._context.live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            response = await self._answer(scope, receive)
        except ClientGone:
            return
        if len(response.body) < _LARGE:
            await respond(send, packed(scope, response))
        else:
            await respond(send, await asyncio.to_thread(packed, scope, response))

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """Whatever happens to one request, it is answered and the server lives on."""
        try:
            self._admit(scope)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is an answer to it
            return unread(scope, self._failed(scope, error))
        try:
            body = await read_body(scope, receive, self._context.settings.max_body_bytes)
            if len(body) >= LARGE and not is_from_peer(scope):
                self._weigh(scope, body)
            response = await (self._respond if self._workers is None else self._workers.answer)(scope, body)
            if response.status < 400:
                self._budget.pay_back(scope)
            return response
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, there is an answer to it
            return self._failed(scope, error)

    def _admit(self, scope: Scope) -> None:
        """Whether a request may be answered at all, by its headers alone; what is refused is not read.

        Raises:
            Problem: 400, 401, 403, 404, 405, 413, 415, 421.
        """
        if self._on_loopback:
            check_host(header(scope, b"host"))
        route, _ = self._find(scope)
        admit(scope, route.guard, self._context.tokens)
        length = check_length(scope, self._context.settings.max_body_bytes)
        if not is_from_peer(scope):
            self._budget.check(scope, length)

    def _weigh(self, scope: Scope, body: bytes) -> None:
        """Whether a large body is parsed.

        Raises:
            Problem: 429, 413.
        """
        self._budget.pay(scope, len(body))
        policy = self._context.roles.current.whose_actions()
        if (
            policy is None
            or scope["method"] != "POST"
            or not scope["path"].endswith(("/decide", "/feedback", "/infer"))
        ):
            return
        if (lists := num_lists(policy)) is not None:
            text = header(scope, b"inference-header-content-length")
            num_bytes = int(text) if text.isascii() and text.isdigit() and int(text) < len(body) else len(body)
            check_lists(body, num_bytes, self._context.settings.max_rows * (1 + lists) + _LISTS_BESIDE)

    def admit_agent(self, scope: Scope, found: Mapping[bytes, bytes], max_bytes: int, admission: Admission) -> None:
        """Decide by the headers alone whether a request of agents that is answered at once may be answered; what is
        refused is not read. `found` are its headers, `admission` is its connection's.

        Raises:
            Problem: 401, 403, 413, 415, 421, 429.
        """
        admission.admit(scope, found, self._context.tokens, on_loopback=self._on_loopback)
        length = found.get(b"content-length")
        if length is not None:
            self._budget.check(scope, check_size(length, max_bytes))

    def refusal(self, scope: Scope, problem: Problem) -> Response:
        """The response to a request that is not read, because of this problem; it is counted."""
        return self._failed(scope, problem)

    async def _respond(self, scope: Scope, body: bytes) -> Response:
        """The answer of this process to a request that is whole."""
        try:
            self._catch_up(scope)
            _, handler = self._find(scope)
            answer = handler(scope, body, time.perf_counter())
            if isinstance(answer, DecisionRequest):
                (answer,) = self._answer_all([answer])
            response = answer if isinstance(answer, Response) else await answer
            if self._context.is_strict and scope["method"] not in ("GET", "HEAD") and not is_order(scope):
                await self._context.keeper.durable()
            return response
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(scope, error)

    def _catch_up(self, scope: Scope) -> None:
        """Have in force what other workers announced. Where it cannot be put on record, orders go on all the same."""
        try:
            self._context.apply_announced()
        except AuditUnwritable:
            if not is_order(scope):
                raise

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to stop: a connection that came in that moment gets an answer, and no second one."""
        return self._context.is_leaving

    def read_at_once(self, handler: HotHandler, scope: Scope, body: bytes) -> Response | DecisionRequest | None:
        """The response to a complete request of agents, or the request to be decided together with others.

        None where other workers are needed. Whatever goes wrong is a response, too: nothing is raised.
        """
        try:
            if len(body) >= LARGE:
                self._weigh(scope, body)
            if self._workers is not None:
                self._context.apply_announced()
                if self._workers.concerns_others(scope, body):
                    self._budget.pay_back(scope)  # it is weighed again where it is answered
                    return None
            answer = handler(scope, body, time.perf_counter())
            if isinstance(answer, Response):
                self._budget.pay_back(scope)
                if self._context.is_strict:  # only since this request began
                    self._context.keeper.sync()
            return answer
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(scope, error)

    def _answer_hot(self, waiting: Sequence[DecisionRequest]) -> list[Response]:
        """The responses to requests of agents that were read before any version demanded a synced record."""
        responses = self._answer_all(waiting)
        if not self._context.is_strict:
            return responses
        try:
            self._context.keeper.sync()
        except NotDurable as error:
            return [self._failed(request.scope, error) for request in waiting]
        return responses

    def _answer_all(self, waiting: Sequence[DecisionRequest]) -> list[Response]:
        """The responses to requests that came together, in their order; an error in one does not concern the others."""
        kinds = [(request.route, type(request.requests.observations)) for request in waiting]
        if kinds.count(kinds[0]) == len(kinds):
            return list(map(self._reply, waiting, self._decided(waiting, kinds[0][0])))
        responses: dict[int, Response] = {}
        for kind in dict.fromkeys(kinds):
            places, route = [place for place, one in enumerate(kinds) if one == kind], kind[0]
            alike = [waiting[place] for place in places]
            for place, request, outcome in zip(places, alike, self._decided(alike, route), strict=True):
                responses[place] = self._reply(request, outcome)
        return [responses[place] for place in range(len(waiting))]

    def _decided(self, waiting: Sequence[DecisionRequest], route: str) -> list[Outcome]:
        requests, starts = [one.requests for one in waiting], [one.started for one in waiting]
        try:
            self._context.apply_announced()
            return self._context.decider.decide_together(requests, self._context.roles.current, starts, route)
        except Exception as error:  # noqa: BLE001 - as above
            return [error] * len(waiting)

    def _reply(self, request: DecisionRequest, outcome: Outcome) -> Response:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._budget.pay_back(request.scope)
            return request.answer(outcome)
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(request.scope, error)

    def hot_handler(self, path: str) -> HotHandler | None:
        """Who answers a POST of agents at once; None for every other path, and where an answer waits for the disk."""
        if self._context.is_strict:
            return None
        if path in self._hot:
            return self._hot[path]
        if path.startswith(self._infer_path) and path.endswith("/infer"):
            match path.split("/")[4:]:
                case ["versions", version, "infer"]:
                    return partial(self._infer, version=unquote(version))
        return None

    def _failed(self, scope: Scope, error: Exception) -> Response:
        if isinstance(error, Problem):
            response = as_problem(error.status, error.message, error.headers)
        elif isinstance(error, NotDurable):
            self._context.last_audit_error = str(error)
            response = as_problem(
                503, f"nothing may be done: what was decided may not outlive a power failure: {error}"
            )
        elif isinstance(error, AuditUnwritable):
            self._context.last_audit_error = str(error)
            status = 507 if error.full else 503
            response = as_problem(status, f"nothing was decided, for it could not be recorded: {error}")
        elif isinstance(error, NoAnswer):
            response = as_problem(422, f"nothing was decided: {error} for this observation")
        else:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            response = as_problem(500, "the server failed; its log says why")
        self._context.metrics.count_problem(int(response.status))
        return response

    def _find(self, scope: Scope) -> tuple[Route, Handler]:
        """The route of a request, and its handler with what the path names.

        Raises:
            Problem: 404, 405.
        """
        route, places = self._router.find(scope)
        served = self._context.settings.policy
        if (name := places.pop("model", served)) != served:
            raise Problem(404, f"no model {name!r}; this server serves {served!r}")
        return route, partial(route.handler, **places)

    # --- decisions ----------------------------------------------------------------------------------------------

    def _decide(self, scope: Scope, body: bytes, started: float) -> Response | DecisionRequest:
        """What one agent is to do, or several: each decision is on record before it is answered."""
        requests, batched = parse_requests(
            parse_json(body), header(scope, b"x-request-id"), self._context.settings.max_rows
        )
        _admit_requests(scope, requests)
        if requests.request_ids is None:
            return DecisionRequest(
                requests, "decide", started, scope, lambda decided: _reply(answers_of(decided), batched)
            )
        return _reply(self._decided_once(requests, started), batched)

    def _decided_once(self, requests: DecisionRequests, started: float) -> list[dict[str, Any]]:
        """What was asked before is answered as it was then; only the rest is decided."""
        if (known := self._context.roles.current.whose_actions()) is not None:
            # Observations as records hold them.
            requests = replace(requests, observations=packed_observations(requests.observations, known))
            check_shapes(requests.observations, known)
        answers = self._context.retries.find(requests)
        rows = [row for row in range(len(requests)) if row not in answers]
        if rows:
            fresh = requests.only(rows)
            decided = answers_of(self._context.decider.decide(fresh, self._context.roles.current, started))
            self._context.retries.remember(fresh, decided)
            answers |= dict(zip(rows, decided, strict=True))
        return [answers[row] for row in range(len(requests))]

    def _feedback(self, scope: Scope, body: bytes, started: float) -> Response:
        """What came of decisions: reward, cost, and whether the episode ended. Once per decision."""
        entries, _ = parse_feedback(parse_json(body), self._context.settings.max_rows)
        ended = self._context.ledger.accept(entries, lambda agent_ids: check_agents(scope, agent_ids))
        self._context.memories.end(ended)
        self._context.metrics.feedback.inc(len(entries))
        return Response(orjson.dumps({"recorded": len(entries)}))

    def _infer(self, scope: Scope, body: bytes, started: float, version: str | None = None) -> DecisionRequest:
        """V2 inference: each row is a decision, recorded and limited like any other."""
        policy = self._acting(version)
        length, max_rows = header(scope, b"inference-header-content-length"), self._context.settings.max_rows
        asked = v2.parse_infer(body, length, policy, max_rows)
        _admit_requests(scope, asked.requests)
        return DecisionRequest(
            asked.requests, "infer", started, scope, lambda decided: v2.infer_response(asked, decided[0])
        )

    # --- health and metadata ------------------------------------------------------------------------------------

    async def _description(self, scope: Scope, body: bytes, started: float) -> Response:
        """This description of the API."""
        return as_json(await asyncio.to_thread(policy_api.document, self._router.routes, self._context))

    async def _metadata(self, scope: Scope, body: bytes, started: float) -> Response:
        """V2 server metadata: its version and its extensions."""
        return as_json(v2.server_metadata())

    async def _live(self, scope: Scope, body: bytes, started: float) -> Response:
        """Whether the server runs."""
        return as_json({"live": True})

    async def _ready(self, scope: Scope, body: bytes, started: float) -> Response:
        """Whether a champion decides, and is kept for a start without the registry as far as the disk allows."""
        ready = self._context.roles.is_ready and not self._context.is_leaving
        return as_json({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, scope: Scope, body: bytes, started: float, version: str | None = None) -> Response:
        """Whether a version is loaded; without one named, whether there is a champion."""
        policy = self._loaded(version)
        return as_json({"name": policy.manifest.name, "ready": True})

    async def _model_metadata(self, scope: Scope, body: bytes, started: float, version: str | None = None) -> Response:
        """V2 model metadata: versions, inputs and outputs."""
        return as_json(v2.model_metadata(self._loaded(version), self._context.roles.current.versions()))

    async def _model_config(self, scope: Scope, body: bytes, started: float, version: str | None = None) -> Response:
        """Triton's model configuration; `max_batch_size` is the most decisions one agent gets at once."""
        return as_json(
            v2.model_config(
                self._loaded(version), int(min(self._context.limiter.burst, self._context.settings.max_rows))
            )
        )

    async def _model_statistics(
        self, scope: Scope, body: bytes, started: float, version: str | None = None
    ) -> Response:
        """Triton's statistics of one version, or of all that are loaded or were asked since the server started."""
        known = self._context.roles.current.versions() | self._context.statistics.versions()
        if version is not None and version not in known:
            raise Problem(404, f"version {version!r} was never loaded; see /v2/models/{self._context.settings.policy}")
        shown = known if version is None else {version}
        return as_json(self._context.statistics.report(self._context.settings.policy, shown))

    def _loaded(self, version: str | None) -> ServedPolicy:
        """A loaded version; without one named, the champion."""
        roles = self._context.roles.current
        policy = roles.champion if version is None else roles.by_version(version)
        if policy is None and version is None:
            raise Problem(503, f"{self._context.settings.policy} has no champion; see /status")
        if policy is None:
            raise Problem(404, f"version {version!r} is not loaded; see /v2/models/{self._context.settings.policy}")
        return policy

    def _acting(self, version: str | None) -> ServedPolicy:
        """The champion, or a version of the split. A challenger is loaded too, but it never acts."""
        roles = self._context.roles.current
        if version is None and roles.champion is None and (known := roles.whose_actions()) is not None:
            return known  # a person may decide, or the fallback
        policy = self._loaded(version)
        if policy is not roles.champion and version not in self._context.controls.orders.plan.split:
            raise Problem(
                403,
                f"version {version!r} does not act here: only the champion does, the versions of the plan's split, or "
                "a version pinned by hand",
            )
        return policy


def _admit_requests(scope: Scope, requests: DecisionRequests) -> None:
    """Demand that the token that was shown may decide for these agents; keep whose it is.

    Raises:
        Problem: 403.
    """
    holder = check_agents(scope, requests.agent_ids)
    if holder is not None:
        requests.holder = holder.name
        requests.by_token = holder.shared_name


def _reply(answers: list[dict[str, Any]], batched: bool) -> Response:
    return Response(orjson.dumps({"decisions": answers} if batched else answers[0]))

"""The hub as an ASGI application: the wire of the Trajectory API, and beside it what the wire lacks."""

import time
from typing import Any

from loomrl.language.trajectory.api import replies
from loomrl.language.trajectory.api.bodies import Bodies
from loomrl.language.trajectory.api.delivery import BatchRoutes, Lease
from loomrl.language.trajectory.api.metrics import HubMetrics
from loomrl.language.trajectory.api.posting import GroupRoutes
from loomrl.language.trajectory.api.posts import Posts
from loomrl.language.trajectory.api.router import WireApplication
from loomrl.language.trajectory.api.upkeep import Upkeep
from loomrl.language.trajectory.api.view import PATHS, View
from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.hub import Hub
from loomrl.language.trajectory.storage.journal import HubJournal
from loomrl.language.trajectory.storage.store import Store
from loomrl.language.trajectory.wire import (
    EnvironmentIdentifier,
    EnvironmentRegistration,
    Registration,
    ScoredGroup,
    TrainerPolicyVersion,
    parse,
)
from loomrl.system.http.access import ANYONE, LOOKS, RUNS, TAKES_PART
from loomrl.system.http.asgi import Response, as_json
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request
from loomrl.system.http.routing import Link, Route
from loomrl.system.http.tokens import Tokens

_TEXT = b"text/plain; charset=utf-8"
_JOINED = {"env_id": "$response.body#/env_id"}
_MAX_ENVIRONMENTS = 100_000
_TIMED = frozenset(("/scored_data", "/scored_data_list", "/batch"))


class HubServer(WireApplication):
    """The ASGI application of a hub: the Trajectory API for environments and trainers, metrics and dashboard. Making
    one raises ServiceError when the database cannot be read."""

    def __init__(self, settings: HubSettings, store: Store, tokens: Tokens) -> None:
        self._journal = HubJournal(store, settings)
        self._metrics = HubMetrics()
        self._posts = Posts(settings.retry_seconds, settings.equal_once)
        self._posts.restore(store.posts(), time.time())
        posting = GroupRoutes(settings, self._journal, self._posts, self._metrics)
        delivery, view = BatchRoutes(self._journal, self._metrics), View(self._journal, self._metrics)
        self._upkeep = Upkeep(store, self._journal, self._posts, self._metrics)
        super().__init__(
            [*self._routes_of_state(), *_routes_of_groups(posting, delivery), *_routes_of_view(view)],
            tokens,
            settings.host,
            Bodies(settings.max_body_bytes, settings.max_pending_bytes),
            self._metrics,
            title="LoomRL hub",
            purpose="The Trajectory API: scored groups of token sequences from environments, batches for trainers.",
        )

    async def begin(self) -> None:
        """Start the rounds of `Upkeep`: quarantine, and writes once a second."""
        await self._upkeep.begin()

    async def end(self) -> None:
        """Stop the rounds, write the last changes and close the store. A database that fails is logged, not raised."""
        await self._upkeep.end()

    def check(self) -> None:
        """Raise ServiceError while the hub's database fails, so that no request is answered; look at it again, once a
        second at most."""
        self._journal.check()

    def observe(self, path: str, seconds: float) -> None:
        """Count the time of a request that posted groups or took a batch; other paths are not counted."""
        if path in _TIMED:
            self._metrics.observe(seconds)

    def _routes_of_state(self) -> list[Route]:
        """Who takes part, and what is known of it."""
        return [
            Route("GET", "/", self._root, answers={200: replies.Greeting}),
            Route("GET", "/info", self._info, ANYONE, {200: replies.Sizes}),
            Route("GET", "/wandb_info", self._wandb_info, ANYONE, {200: replies.WandbNames}),
            Route("GET", "/status", self._status, ANYONE, {200: replies.QueueStatus}),
            Route(
                "POST", "/register-env", self._register_environment, TAKES_PART, {200: replies.EnvironmentJoined},
                EnvironmentRegistration, links={"status": Link("GET", "/status-env", body=_JOINED)},
            ),
            Route(
                "POST", "/disconnect-env", self._disconnect_environment, TAKES_PART, {200: replies.Done},
                EnvironmentIdentifier,
            ),
            Route(
                "GET", "/status-env", self._environment_status, TAKES_PART, {200: replies.EnvironmentStatus},
                EnvironmentIdentifier, problems=(404,),
            ),
            Route("POST", "/register", self._register, RUNS, {200: replies.Registered}, Registration),
            Route("GET", "/reset_data", self._reset, RUNS, {200: {replies.TEXT_TYPE: str}}),
            Route("GET", "/policy_version", self._policy_version, ANYONE, {200: replies.PolicyVersionReply}),
            Route("POST", "/policy_version", self._set_policy_version, RUNS, {200: replies.Done}, TrainerPolicyVersion),
        ]  # fmt: skip

    @property
    def _hub(self) -> Hub:
        return self._journal.hub

    # --- what is asked for ----------------------------------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        """The wire's greeting."""
        return as_json({"message": "AtroposLib API"})

    async def _info(self, request: Request) -> Response:
        """How large batches and sequences are."""
        return as_json({"batch_size": self._hub.batch_size, "max_token_len": self._hub.state.max_token_len})

    async def _wandb_info(self, request: Request) -> Response:
        """Where the trainer logs."""
        known = self._hub.state.registration or {}
        return as_json({"group": known.get("wandb_group"), "project": known.get("wandb_project")})

    async def _status(self, request: Request) -> Response:
        """How far the trainer is, and what waits."""
        hub = self._hub
        is_registered = hub.state.registration is not None
        return as_json({"current_step": hub.state.step, "queue_size": len(hub.queue) if is_registered else 0})

    async def _environment_status(self, request: Request) -> Response:
        """What an environment's queue holds, and its share of batches."""
        env_id = parse(EnvironmentIdentifier, request.body).env_id
        if (environment := self._hub.environments.get(env_id)) is None:
            raise Problem(404, f"no environment {env_id} is registered: register it by POST /register-env")
        return as_json(self._hub.environment_status(environment, time.time()))

    async def _policy_version(self, request: Request) -> Response:
        """Which policy the trainer has now."""
        return as_json({"version": self._hub.state.policy_version})

    # --- what changes something -----------------------------------------------------------------------------------

    async def _register(self, request: Request) -> Response:
        """A trainer says how large its batches are; the first one counts."""
        number = self._hub.register(parse(Registration, request.body))
        await self._journal.durable()
        return Response(b'{"uuid":%d}' % number)

    async def _register_environment(self, request: Request) -> Response:
        """An environment joins, once a trainer asked for a batch."""
        said, hub = parse(EnvironmentRegistration, request.body), self._hub
        if not hub.state.started or hub.state.registration is None:
            return as_json({"status": "wait for trainer to start"})
        if len(hub.environments) >= _MAX_ENVIRONMENTS:
            raise Problem(503, f"{_MAX_ENVIRONMENTS} environments were registered, which is all; GET /reset_data")
        environment, known = hub.register_environment(said, time.time()), hub.state.registration
        answer = {
            "status": "success",
            "env_id": environment.env_id,
            "wandb_name": environment.shown_name,
            "checkpoint_dir": known["checkpoint_dir"],
            "starting_step": hub.state.step,
            "checkpoint_interval": known["save_checkpoint_interval"],
            "num_steps": known["num_steps"],
        }
        await self._journal.durable()
        return as_json(answer)

    async def _disconnect_environment(self, request: Request) -> Response:
        """An environment leaves."""
        env_id, hub = parse(EnvironmentIdentifier, request.body).env_id, self._hub
        if (environment := hub.environments.get(env_id)) is None:
            return as_json({"status": "failure", "error": f"no environment {env_id} is registered"})
        hub.environments.disconnect(environment)
        hub.record_environment(environment)
        await self._journal.durable()
        return as_json({"status": "success"})

    async def _set_policy_version(self, request: Request) -> Response:
        """Which policy the trainer has from now on."""
        self._hub.set_policy_version(parse(TrainerPolicyVersion, request.body).version)
        await self._journal.durable()
        return as_json({"status": "success"})

    async def _reset(self, request: Request) -> Response:
        """Forget everything."""
        self._hub.reset()
        self._posts.clear()
        await self._journal.durable()
        return Response(b"Reset successful", content_type=_TEXT)


def _routes_of_groups(posting: GroupRoutes, delivery: BatchRoutes) -> list[Route]:
    """Groups come in, batches go out."""
    headers = ("Idempotency-Key", "X-Policy-Version")
    acknowledged = Link("POST", "/batch/{batch_id}/ack", {"batch_id": "$response.body#/batch_id"})
    return [
        Route(
            "POST", "/scored_data", posting.add_group, TAKES_PART, {200: replies.GroupAccepted}, ScoredGroup,
            headers=headers,
        ),
        Route(
            "POST", "/scored_data_list", posting.add_groups, TAKES_PART, {200: replies.GroupsAccepted},
            list[ScoredGroup], headers=(*headers, "Prefer"),
        ),
        Route("GET", "/latest_example", delivery.latest_example, ANYONE, {200: dict[str, Any]}),
        Route(
            "GET", "/batch", delivery.batch, RUNS, {200: replies.NextBatch}, query=Lease,
            links={"acknowledge": acknowledged},
        ),
        Route("POST", "/batch/{batch_id}/ack", delivery.acknowledge, RUNS, {200: replies.Done}),
    ]  # fmt: skip


def _routes_of_view(view: View) -> list[Route]:
    """What people and Prometheus see."""
    files = [Route("GET", path, view.page, answers={200: {kind: str}}) for path, kind in PATHS.items()]
    return [
        Route("GET", "/hub", view.hub, LOOKS, {200: replies.HubReport}),
        Route("GET", "/metrics", view.metrics, LOOKS, {200: {replies.TEXT_TYPE: str}}),
        *files,
    ]

"""The hub as an ASGI application: the wire of the Trajectory API, and beside it what the wire lacks."""

import time
from functools import partial

from loomrl.serving.asgi import ClientGone, Receive, Response, Scope, Send, as_json, respond
from loomrl.serving.problems import Problem
from loomrl.serving.tokens import DECIDE, OBSERVE, OPERATE, Tokens
from loomrl.trajectory.access import ANYONE
from loomrl.trajectory.bodies import Bodies, packed
from loomrl.trajectory.delivery import Delivery
from loomrl.trajectory.hub import Hub
from loomrl.trajectory.journal import Journal
from loomrl.trajectory.metrics import Metrics
from loomrl.trajectory.posting import Posting
from loomrl.trajectory.posts import Posts
from loomrl.trajectory.request import Request
from loomrl.trajectory.router import Route, Router, intake_for
from loomrl.trajectory.settings import HubSettings
from loomrl.trajectory.store import Store
from loomrl.trajectory.upkeep import Upkeep
from loomrl.trajectory.view import PATHS, View
from loomrl.trajectory.wire import (
    EnvironmentIdentifier,
    EnvironmentRegistration,
    PolicyVersion,
    Registration,
    parse,
)

_TEXT = b"text/plain; charset=utf-8"
_MAX_ENVIRONMENTS = 100_000


class HubServer:
    """Answers environments and trainers."""

    def __init__(self, settings: HubSettings, store: Store, tokens: Tokens) -> None:
        self._journal = Journal(store, settings)
        self._metrics = Metrics()
        self._posts = Posts(settings.retry_seconds, settings.equal_once)
        self._posts.restore(store.posts(), time.time())
        posting = Posting(settings, self._journal, self._posts, self._metrics)
        delivery, view = Delivery(self._journal, self._metrics), View(self._journal, self._metrics)
        self._upkeep = Upkeep(store, self._journal, self._posts, self._metrics)
        self._timed = {"/scored_data", "/scored_data_list", "/batch"}
        routes: dict[tuple[str, str], Route] = {
            ("GET", "/"): (None, self._root),
            ("GET", "/info"): (ANYONE, self._info),
            ("GET", "/wandb_info"): (ANYONE, self._wandb_info),
            ("GET", "/status"): (ANYONE, self._status),
            ("GET", "/latest_example"): (ANYONE, delivery.latest_example),
            ("POST", "/register-env"): (DECIDE, self._register_environment),
            ("POST", "/disconnect-env"): (DECIDE, self._disconnect_environment),
            ("GET", "/status-env"): (DECIDE, self._environment_status),
            ("POST", "/scored_data"): (DECIDE, posting.one),
            ("POST", "/scored_data_list"): (DECIDE, posting.several),
            ("POST", "/register"): (OPERATE, self._register),
            ("GET", "/batch"): (OPERATE, delivery.batch),
            ("GET", "/reset_data"): (OPERATE, self._reset),
            ("GET", "/policy_version"): (ANYONE, self._policy_version),
            ("POST", "/policy_version"): (OPERATE, self._set_policy_version),
            ("GET", "/hub"): (OBSERVE, view.hub),
            ("GET", "/metrics"): (OBSERVE, view.metrics),
            **{("GET", path): (None, view.page) for path in PATHS},
        }
        self.intake = intake_for(settings.max_pending_bytes, self._metrics.count_problem)
        self._acknowledge = delivery.acknowledge
        self._router = Router(
            routes,
            tokens,
            settings.host,
            Bodies(settings.max_body_bytes, settings.max_pending_bytes),
            check=self._journal.check,
            count=self._metrics.count_problem,
            find_other=self._find_acknowledge,
        )

    @property
    def _hub(self) -> Hub:
        return self._journal.hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's life span."""
        if scope["type"] == "lifespan":
            await self._upkeep.live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        try:
            response = packed(scope, await self._router.answer(scope, receive))
        except ClientGone:
            return
        if scope["path"] in self._timed:
            self._metrics.observe(time.perf_counter() - started)
        await respond(send, response)

    def _find_acknowledge(self, method: str, path: str) -> Route | None:
        match path.split("/"):
            case ["", "batch", batch_id, "ack"] if batch_id.isascii() and batch_id.isdigit():
                if method == "POST":
                    return OPERATE, partial(self._acknowledge, int(batch_id))
                raise Problem(405, "Method Not Allowed", {"Allow": "POST"})
        return None

    # --- what is asked for ----------------------------------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        return as_json({"message": "AtroposLib API"})

    async def _info(self, request: Request) -> Response:
        return as_json({"batch_size": self._hub.batch_size, "max_token_len": self._hub.state.max_token_len})

    async def _wandb_info(self, request: Request) -> Response:
        known = self._hub.state.registration or {}
        return as_json({"group": known.get("wandb_group"), "project": known.get("wandb_project")})

    async def _status(self, request: Request) -> Response:
        hub = self._hub
        is_registered = hub.state.registration is not None
        return as_json({"current_step": hub.state.step, "queue_size": len(hub.queue) if is_registered else 0})

    async def _environment_status(self, request: Request) -> Response:
        env_id = parse(EnvironmentIdentifier, request.body).env_id
        if (environment := self._hub.environments.find(env_id)) is None:
            raise Problem(404, f"no environment {env_id} is registered: register it by POST /register-env")
        return as_json(self._hub.environment_status(environment, time.time()))

    async def _policy_version(self, request: Request) -> Response:
        return as_json({"version": self._hub.state.policy_version})

    # --- what changes something -----------------------------------------------------------------------------------

    async def _register(self, request: Request) -> Response:
        number = self._hub.register(parse(Registration, request.body))
        await self._journal.durable()
        return Response(b'{"uuid":%d}' % number)

    async def _register_environment(self, request: Request) -> Response:
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
        env_id, hub = parse(EnvironmentIdentifier, request.body).env_id, self._hub
        if (environment := hub.environments.find(env_id)) is None:
            return as_json({"status": "failure", "error": f"no environment {env_id} is registered"})
        hub.environments.disconnect(environment)
        hub.note_environment(environment)
        await self._journal.durable()
        return as_json({"status": "success"})

    async def _set_policy_version(self, request: Request) -> Response:
        self._hub.set_policy_version(parse(PolicyVersion, request.body).version)
        await self._journal.durable()
        return as_json({"status": "success"})

    async def _reset(self, request: Request) -> Response:
        self._hub.reset()
        self._posts.clear()
        await self._journal.durable()
        return Response(b"Reset successful", content_type=_TEXT)

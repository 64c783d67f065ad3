"""A served engine as an ASGI application."""

from loomrl.inference.builtin import BuiltinEngine
from loomrl.inference.completing import Completing
from loomrl.inference.metrics import Metrics
from loomrl.inference.settings import EngineSettings
from loomrl.inference.updating import Updating
from loomrl.language.policy import LanguagePolicy
from loomrl.serving.asgi import ClientGone, Receive, Response, Scope, Send, respond
from loomrl.serving.tokens import DECIDE, OBSERVE, OPERATE, Tokens
from loomrl.trajectory.access import ANYONE
from loomrl.trajectory.bodies import Bodies, packed
from loomrl.trajectory.request import Request
from loomrl.trajectory.router import Route, Router, intake_for

_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class EngineServer:
    """Answers environments, in the shapes of vLLM, SGLang and OpenAI, and trainers."""

    def __init__(self, settings: EngineSettings, tokens: Tokens) -> None:
        self._metrics = Metrics()
        self._engine = BuiltinEngine(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            seed=settings.seed,
            observe=self._metrics.observe_completion,
        )
        self._engine.update(LanguagePolicy.load(settings.policy), settings.version)
        scheduler = self._engine.scheduler
        self._metrics.gauge("running", "Completions that are being decoded", lambda: scheduler.num_running)
        self._metrics.gauge("waiting", "Completions that wait for their turn", lambda: scheduler.num_waiting)
        self._metrics.gauge("policy_version", "Version of the policy", lambda: self._engine.version)
        self.intake = intake_for(settings.max_pending_bytes, self._metrics.count_problem)
        self._router = Router(
            self._routes(),
            tokens,
            settings.host,
            Bodies(settings.max_body_bytes, settings.max_pending_bytes),
            check=lambda: None,
            count=self._metrics.count_problem,
        )

    def _routes(self) -> dict[tuple[str, str], Route]:
        completing, updating = Completing(self._engine, self._metrics), Updating(self._engine, self._metrics)
        return {
            ("GET", "/health"): (None, completing.health),
            ("GET", "/v1/models"): (ANYONE, completing.models),
            ("POST", "/tokenize"): (DECIDE, completing.tokenize),
            ("POST", "/generate"): (DECIDE, completing.generate),
            ("POST", "/v1/completions"): (DECIDE, completing.completions),
            ("POST", "/v1/chat/completions"): (DECIDE, completing.chat),
            ("GET", "/model_info"): (ANYONE, updating.model_info),
            ("GET", "/get_model_info"): (ANYONE, updating.model_info),
            ("GET", "/flush_cache"): (OPERATE, updating.flush_cache),
            ("POST", "/flush_cache"): (OPERATE, updating.flush_cache),
            ("POST", "/pause_generation"): (OPERATE, updating.pause_generation),
            ("POST", "/continue_generation"): (OPERATE, updating.continue_generation),
            ("POST", "/update_weights_from_disk"): (OPERATE, updating.from_disk),
            ("POST", "/update_weights_from_tensor"): (OPERATE, updating.from_tensor),
            ("GET", "/weight_info"): (ANYONE, updating.weight_info),
            ("GET", "/get_world_size"): (ANYONE, updating.world_size),
            ("GET", "/is_paused"): (ANYONE, updating.is_paused),
            ("POST", "/pause"): (OPERATE, updating.pause),
            ("POST", "/resume"): (OPERATE, updating.resume),
            ("POST", "/init_weight_transfer_engine"): (OPERATE, updating.init_transfer),
            ("POST", "/start_weight_update"): (OPERATE, updating.start),
            ("POST", "/update_weights"): (OPERATE, updating.take),
            ("POST", "/finish_weight_update"): (OPERATE, updating.finish),
            ("POST", "/collective_rpc"): (OPERATE, updating.reload),
            ("POST", "/update_weight_version"): (OPERATE, updating.rename),
            ("GET", "/metrics"): (OBSERVE, self._show_metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's life span."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            response = packed(scope, await self._router.answer(scope, receive))
        except ClientGone:
            return
        await respond(send, response)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), content_type=_METRICS)

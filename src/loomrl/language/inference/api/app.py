"""A served engine as an ASGI application."""

from loomrl.language.inference.api import replies
from loomrl.language.inference.api.asking import OpenAIChat, OpenAICompletion, SGLangGenerate, Tokenize, VLLMGenerate
from loomrl.language.inference.api.completing import CompletionRoutes
from loomrl.language.inference.api.metrics import EngineMetrics
from loomrl.language.inference.api.updating import (
    FinishUpdate,
    FromDisk,
    FromTensor,
    InitTransfer,
    NewVersion,
    PauseGeneration,
    PauseQuery,
    Reload,
    UpdateWeights,
    WeightRoutes,
)
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.settings import EngineSettings
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.trajectory.api.bodies import Bodies
from loomrl.language.trajectory.api.replies import TEXT_TYPE, WireRefusal
from loomrl.language.trajectory.api.router import WireApplication
from loomrl.system.http.access import ANYONE, LOOKS, RUNS, TAKES_PART
from loomrl.system.http.asgi import Response
from loomrl.system.http.request import Request
from loomrl.system.http.routing import JSON_TYPE, Route
from loomrl.system.http.tokens import Tokens

_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class EngineServer(WireApplication):
    """The ASGI application of an engine: completions in the shapes of vLLM, SGLang and OpenAI, weights from trainers.

    Raises:
        ArtifactError: when the policy that the settings name cannot be read, or has a weight that is not finite.
        ConfigError: when it is a Hugging Face model and `transformers` is not installed.
    """

    def __init__(self, settings: EngineSettings, tokens: Tokens) -> None:
        self._metrics = EngineMetrics()
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
        completing, updating = CompletionRoutes(self._engine, self._metrics), WeightRoutes(self._engine, self._metrics)
        shown = Route("GET", "/metrics", self._show_metrics, LOOKS, {200: {TEXT_TYPE: str}})
        super().__init__(
            [*_routes_of_completions(completing), *_sglang_routes(updating), *_vllm_routes(updating), shown],
            tokens,
            settings.host,
            Bodies(settings.max_body_bytes, settings.max_pending_bytes),
            self._metrics,
            title="LoomRL engine",
            purpose="Completions by a policy, in the shapes of vLLM, SGLang and OpenAI, and the policy's next weights.",
            max_bytes={TAKES_PART: min(settings.max_prompt_bytes, settings.max_body_bytes)},
        )

    async def end(self) -> None:
        """Close the engine, at the server's end; what is unanswered fails with ServiceError."""
        self._engine.close()

    async def _show_metrics(self, request: Request) -> Response:
        """Prometheus text format."""
        return Response(self._metrics.text(), content_type=_METRICS)


def _routes_of_completions(completing: CompletionRoutes) -> list[Route]:
    """Completions, and what clients ask before they want any."""
    return [
        Route("GET", "/health", completing.health, answers={200: {}}),
        Route("GET", "/v1/models", completing.models, ANYONE, {200: replies.Models}),
        Route("POST", "/tokenize", completing.tokenize, TAKES_PART, {200: replies.Tokenized}, Tokenize),
        Route(
            "POST", "/generate", completing.generate, TAKES_PART, {200: replies.Generated},
            VLLMGenerate | SGLangGenerate,
        ),
        Route(
            "POST", "/v1/completions", completing.completions, TAKES_PART, {200: replies.OpenAIAnswer},
            OpenAICompletion,
        ),
        Route(
            "POST", "/v1/chat/completions", completing.chat, TAKES_PART, {200: replies.OpenAIAnswer}, OpenAIChat
        ),
    ]  # fmt: skip


def _sglang_routes(updating: WeightRoutes) -> list[Route]:
    """Weights and pauses in SGLang's words; a failure is told in the shape of a success."""
    updated = {200: replies.Updated, 400: {JSON_TYPE: replies.Updated | WireRefusal, TEXT_TYPE: str}}
    flushed = {200: {TEXT_TYPE: str}}
    return [
        Route("GET", "/model_info", updating.model_info, ANYONE, {200: replies.ModelInfo}),
        Route("GET", "/get_model_info", updating.model_info, ANYONE, {200: replies.ModelInfo}),
        Route("GET", "/flush_cache", updating.flush_cache, RUNS, flushed),
        Route("POST", "/flush_cache", updating.flush_cache, RUNS, flushed),
        Route(
            "POST", "/pause_generation", updating.pause_generation, RUNS, {200: replies.MessageReply}, PauseGeneration,
            needs_body=False,
        ),
        Route("POST", "/continue_generation", updating.continue_generation, RUNS, {200: replies.MessageReply}),
        Route("POST", "/update_weights_from_disk", updating.from_disk, RUNS, updated, FromDisk),
        Route("POST", "/update_weights_from_tensor", updating.from_tensor, RUNS, updated, FromTensor),
    ]  # fmt: skip


def _vllm_routes(updating: WeightRoutes) -> list[Route]:
    """Weights and pauses in vLLM's words."""
    message = {200: replies.MessageReply}
    return [
        Route("GET", "/weight_info", updating.weight_info, ANYONE, {200: replies.WeightInfo}),
        Route("GET", "/get_world_size", updating.world_size, ANYONE, {200: replies.WorldSize}),
        Route("GET", "/is_paused", updating.is_paused, ANYONE, {200: replies.IsPaused}),
        Route("POST", "/pause", updating.pause, RUNS, {200: replies.Paused}, query=PauseQuery),
        Route("POST", "/resume", updating.resume, RUNS, {200: replies.Paused}),
        Route("POST", "/init_weight_transfer_engine", updating.init_transfer, RUNS, message, InitTransfer),
        Route("POST", "/start_weight_update", updating.start, RUNS, message),
        Route("POST", "/update_weights", updating.receive, RUNS, message, UpdateWeights, problems=(409,)),
        Route(
            "POST", "/finish_weight_update", updating.finish, RUNS, message, FinishUpdate, needs_body=False,
            problems=(409,),
        ),
        Route("POST", "/collective_rpc", updating.reload, RUNS, {200: replies.Reloaded}, Reload),
        Route("POST", "/update_weight_version", updating.set_version, RUNS, {200: replies.Renamed}, NewVersion),
    ]  # fmt: skip

"""The routes that complete prompts, and what unmodified environments request before them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import orjson

from loomrl.errors import ConfigError
from loomrl.language.inference.api.answering import as_openai_chat, as_openai_completion, as_sglang, as_vllm
from loomrl.language.inference.api.asking import (
    CompletionRequest,
    OpenAIChat,
    OpenAICompletion,
    SGLangGenerate,
    Tokenize,
    VLLMGenerate,
)
from loomrl.language.inference.api.metrics import EngineMetrics
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.engine import Completions
from loomrl.language.inference.scheduler import Busy
from loomrl.language.policies.tokens import Tokenizer
from loomrl.language.trajectory.wire import parse
from loomrl.system.http.asgi import ClientGone, Response, as_json
from loomrl.system.http.large_bodies import LARGE, check_lists
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request, beside

_RETRY = {"Retry-After": "1"}
_MODEL = "loomrl"
_MAX_LISTS = 50_000  # and objects, of a large body; brackets in its texts count, too
T = TypeVar("T")


class CompletionRoutes:
    """The routes of completions. A request whose sender disconnects is not decoded any further."""

    def __init__(self, engine: BuiltinEngine, metrics: EngineMetrics) -> None:
        self._engine, self._metrics = engine, metrics

    async def health(self, request: Request) -> Response:
        """An empty 200 while the engine's decoding thread runs.

        Raises:
            Problem: 503 when the thread has ended.
        """
        if not self._engine.is_alive:
            raise Problem(503, "the engine's thread has ended; restart the server")
        return Response(b"")

    async def models(self, request: Request) -> Response:
        """The one model there is, `loomrl`, with its context length in tokens, in the form of OpenAI's `GET
        /v1/models`."""
        longest = self._engine.policy.model.config.max_tokens
        return as_json({"object": "list", "data": [{"id": _MODEL, "object": "model", "max_model_len": longest}]})

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text, as the engine reads it."""
        text = parse(Tokenize, request.body).prompt
        try:
            tokens = await _run_beside(
                request, lambda: self._tokenizer.prompt(text.removeprefix(self._tokenizer.begin))
            )
        except ConfigError as error:
            raise Problem(400, str(error)) from error
        longest = self._engine.policy.model.config.max_tokens
        return as_json({"tokens": tokens, "count": len(tokens), "max_model_len": longest})

    async def generate(self, request: Request) -> Response:
        """`/generate` of vLLM's example server where the body has a `prompt`, else SGLang's."""
        _check(request)
        if await _run_beside(request, lambda: _has_prompt(request.body)):
            wanted = await _run_beside(request, lambda: parse(VLLMGenerate, request.body).to_request())
            return await self._answer(request, wanted, lambda answers: as_vllm(answers[0], wanted, self._tokenizer))
        wanted = await _run_beside(request, lambda: parse(SGLangGenerate, request.body).to_request())
        return await self._answer(request, wanted, lambda answers: as_sglang(answers, wanted))

    async def completions(self, request: Request) -> Response:
        """The completions of one or several prompts, as OpenAI's `POST /v1/completions` answers.

        Raises:
            Problem: 400 for a prompt that the policy cannot take, 503 while too many completions wait.
        """
        _check(request)
        body = await _run_beside(request, lambda: parse(OpenAICompletion, request.body))
        return await self._answer(
            request, body.to_request(), lambda answers: as_openai_completion(answers, body, self._tokenizer)
        )

    async def chat(self, request: Request) -> Response:
        """The next messages of a conversation, as OpenAI's `POST /v1/chat/completions` answers.

        Raises:
            Problem: 400 for messages that the tokenizer or the policy cannot take, 503 while too many completions wait.
        """
        _check(request)
        body = await _run_beside(request, lambda: parse(OpenAIChat, request.body))
        try:
            wanted = await _run_beside(request, lambda: body.to_request(self._tokenizer))
        except ConfigError as error:
            raise Problem(400, str(error)) from error
        return await self._answer(request, wanted, lambda answers: as_openai_chat(answers[0], body, self._tokenizer))

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._engine.policy.tokenizer

    async def _answer(
        self, request: Request, wanted: CompletionRequest, shape: Callable[[Sequence[Completions]], object]
    ) -> Response:
        started = time.perf_counter()
        answers = await _await_or_cancel(request, await _run_beside(request, lambda: self._submit(wanted)))
        self._metrics.observe(time.perf_counter() - started)
        versions = {one.version for answer in answers for one in answer.completions}
        headers = {"X-Policy-Version": str(versions.pop())} if len(versions) == 1 else {}
        said = as_json(shape(answers))
        return Response(said.body, headers=headers)

    def _submit(self, wanted: CompletionRequest) -> "list[Future[Completions]]":
        # A chat template may have written the begin token as text; the engine begins every text itself.
        begin = self._tokenizer.begin
        prompts = [prompt.removeprefix(begin) if isinstance(prompt, str) else prompt for prompt in wanted.prompts]
        try:
            return self._engine.submit(prompts, n=wanted.n, sampling=wanted.sampling)
        except ConfigError as error:
            raise Problem(400, str(error)) from error
        except Busy as error:
            raise Problem(503, str(error), _RETRY) from error


def _check(request: Request) -> None:
    """Refuse a body whose reading would keep others waiting, for no thread helps there.

    Raises:
        Problem: 413.
    """
    check_lists(request.body, len(request.body), _MAX_LISTS)


async def _run_beside(request: Request, work: Callable[[], T]) -> T:
    """What reading a request takes; in a thread where that may be long: tokens are made one by one."""
    return await beside(len(request.body), work, LARGE)


def _has_prompt(body: bytes) -> bool:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False  # whichever shape is tried, it says what is wrong
    return isinstance(said, dict) and "prompt" in said


async def _await_or_cancel(request: Request, futures: "Sequence[Future[Completions]]") -> list[Completions]:
    """What the futures become.

    Raises:
        ClientGone: when the sender waits no longer; the futures are cancelled.
    """
    answers = asyncio.gather(*map(asyncio.wrap_future, futures))
    gone = asyncio.ensure_future(request.until_sender_is_gone())
    try:
        await asyncio.wait((answers, gone), return_when=asyncio.FIRST_COMPLETED)
        if answers.done():
            return answers.result()
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        raise ClientGone
    finally:
        gone.cancel()

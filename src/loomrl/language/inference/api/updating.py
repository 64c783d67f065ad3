"""The routes by which trainers hand over new weights, in the words of vLLM and of SGLang.

Weights are read and checked as a whole before they are served, so that whatever is wrong, the old ones go on being
served: see `loomrl.language.inference.weights`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar
from urllib.parse import parse_qs

from pydantic import Field
from torch import Tensor

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.inference.api.metrics import EngineMetrics
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.engine import PauseMode
from loomrl.language.inference.weights import check_kinds, read_folder, unpacked, with_weights
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.trajectory.wire import Body, parse
from loomrl.system.http.asgi import Response, as_json
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request
from loomrl.system.schema import Document

Version = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]  # as these servers have it, a text
B = TypeVar("B", bound=Body)
_PAUSE_MODES: dict[str, PauseMode] = {"abort": "abort", "wait": "wait", "keep": "keep"}
_PAUSE_GENERATION_MODES: dict[str, PauseMode] = {"abort": "abort", "retract": "keep", "in_place": "keep"}


class PauseGeneration(Body):
    """The body of SGLang's `POST /pause_generation`: whether running requests are aborted or kept."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class PauseQuery(Document):
    """The query of vLLM's `POST /pause`: whether running requests are aborted, finished or kept."""

    mode: PauseMode = "abort"


class FromDisk(Body):
    """The body of SGLang's `POST /update_weights_from_disk`: a folder with the new weights, and their version."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: Version | None = None
    flush_cache: bool = True


class FromTensor(Body):
    """The body of SGLang's `POST /update_weights_from_tensor`: base64 safetensors in place of SGLang's pickles."""

    serialized_named_tensors: Annotated[list[str], Field(min_length=1, max_length=1_024)]
    load_format: Literal["safetensors"]
    abort_all_requests: bool = False
    weight_version: Version | None = None
    flush_cache: bool = True


class NewVersion(Body):
    """The body of `POST /update_weight_version` of vLLM and SGLang: the version to give the served weights."""

    new_version: Version


class InitTransfer(Body):
    """The body of vLLM's `POST /init_weight_transfer_engine`, which is read and not needed."""

    init_info: dict[str, object]


class UpdateInfo(Body):
    """A folder, or one or more of the tensors: vLLM's `disk` backend, and safetensors in base64."""

    path: str | None = None
    safetensors: str | None = None


class UpdateWeights(Body):
    """vLLM's `/update_weights`; may come several times between start and finish."""

    update_info: UpdateInfo


class FinishUpdate(Body):
    """The body of vLLM's `POST /finish_weight_update`: the version of the new weights, or null for the next number."""

    weight_version: Version | None = None


class ReloadArguments(Body):
    """The arguments of vLLM's method `reload_weights`: the folder that holds the new weights."""

    weights_path: str


class Reload(Body):
    """The body of vLLM's `POST /collective_rpc`; its only known method is `reload_weights`."""

    method: Literal["reload_weights"]
    arguments: Annotated[ReloadArguments, Field(alias="kwargs")]


class WeightRoutes:
    """The routes of weights and pauses. One update is made at a time."""

    def __init__(self, engine: BuiltinEngine, metrics: EngineMetrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._turn = asyncio.Lock()
        self._received: dict[str, Tensor] | None = None  # between start and finish

    # --- SGLang ---------------------------------------------------------------------------------------------------

    async def pause_generation(self, request: Request) -> Response:
        """Pause the engine: running requests are aborted or kept, by the body's mode, and no new one is begun."""
        await self._pause(_PAUSE_GENERATION_MODES[_parse(PauseGeneration, request.body).mode])
        return as_json({"status": "ok", "message": "Generation paused successfully."})

    async def continue_generation(self, request: Request) -> Response:
        """Begin waiting requests and continue kept ones, after `/pause_generation`."""
        self._engine.resume()
        return as_json({"status": "ok", "message": "Generation continued successfully."})

    async def from_disk(self, request: Request) -> Response:
        """Serve the weights of a folder from now on; the answer has SGLang's `success`, 400 where the weights are
        refused."""
        said = parse(FromDisk, request.body)
        return await self._sglang(lambda: read_folder(said.model_path), said.weight_version, said.abort_all_requests)

    async def from_tensor(self, request: Request) -> Response:
        """Serve the weights in the body from now on; the answer has SGLang's `success`, 400 where the weights are
        refused."""
        said = parse(FromTensor, request.body)
        return await self._sglang(
            lambda: with_weights(self._engine.policy, unpacked(*said.serialized_named_tensors)),
            said.weight_version,
            said.abort_all_requests,
        )

    async def model_info(self, request: Request) -> Response:
        """The version, and what else SGLang says of a model."""
        return as_json({"model_path": "loomrl", "is_generation": True, "weight_version": str(self._engine.version)})

    async def flush_cache(self, request: Request) -> Response:
        """SGLang's answer, without effect: the engine keeps no cache beyond a request."""
        return Response(b"Cache flushed.\n", content_type=b"text/plain; charset=utf-8")

    # --- vLLM -----------------------------------------------------------------------------------------------------

    async def pause(self, request: Request) -> Response:
        """Pause the engine: running requests are aborted, finished or kept, by `?mode=`, and no new one is begun.

        Raises:
            Problem: 400 for an unknown mode.
        """
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        mode = query.get("mode", ["abort"])[-1]
        if mode not in _PAUSE_MODES:
            raise Problem(400, f"mode is {mode!r}; it is one of {', '.join(_PAUSE_MODES)}")
        await self._pause(_PAUSE_MODES[mode])
        return as_json({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Begin waiting requests and continue kept ones, after `/pause`."""
        self._engine.resume()
        return as_json({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        """Whether the engine is paused and begins no new request."""
        return as_json({"is_paused": self._engine.scheduler.is_paused})

    async def init_transfer(self, request: Request) -> Response:
        """Accept vLLM's start of a weight transfer; weights come over HTTP, so there is nothing to set up."""
        parse(InitTransfer, request.body)
        return as_json({"message": "Weight transfer initialized"})

    async def start(self, request: Request) -> Response:
        """Begin a weight update over several requests; an unfinished one before it is discarded."""
        async with self._turn:
            self._received = {}
        return as_json({"message": "Weight update started"})

    async def receive(self, request: Request) -> Response:
        """Receive some or all of the weights; they are served after `/finish_weight_update`.

        Raises:
            Problem: 409 before `/start_weight_update`, 400 for what is no weight of the policy.
        """
        info = parse(UpdateWeights, request.body).update_info
        async with self._turn:
            if self._received is None:
                raise Problem(409, "no update was started; POST /start_weight_update first")
            self._received.update(await asyncio.to_thread(_tensors_of, info, self._engine.policy))
        return as_json({"message": "Weights updated"})

    async def finish(self, request: Request) -> Response:
        """Serve the weights received since `/start_weight_update` from now on.

        Raises:
            Problem: 409 before `/start_weight_update`, 400 where weights are missing or wrong.
        """
        version = _parse(FinishUpdate, request.body).weight_version
        async with self._turn:
            received, self._received = self._received, None
            if received is None:
                raise Problem(409, "no update was started; POST /start_weight_update first")
            await self._serve(lambda: with_weights(self._engine.policy, received), version)
        return as_json({"message": "Weight update finished"})

    async def reload(self, request: Request) -> Response:
        """Serve the weights of a folder from now on, as the next version.

        Raises:
            Problem: 400 where the weights are refused; the old ones stay.
        """
        path = parse(Reload, request.body).arguments.weights_path
        async with self._turn:
            await self._serve(lambda: read_folder(path), None)
        return as_json({"results": [None]})

    async def weight_info(self, request: Request) -> Response:
        """The version of the served weights, a whole number as text."""
        return as_json({"weight_version": str(self._engine.version)})

    async def world_size(self, request: Request) -> Response:
        """The number of processes that hold the weights: always 1."""
        return as_json({"world_size": 1})

    # --- both -----------------------------------------------------------------------------------------------------

    async def set_version(self, request: Request) -> Response:
        """Serve the same weights under another version number."""
        version = parse(NewVersion, request.body).new_version
        async with self._turn:
            await self._serve(lambda: self._engine.policy, version)
        return as_json({"success": True, "message": f"Weight version updated to {version}", "new_version": version})

    async def _pause(self, mode: PauseMode) -> None:
        await asyncio.to_thread(self._engine.pause, mode)

    async def _sglang(self, read: Callable[[], LanguagePolicy], version: str | None, aborts: bool) -> Response:
        """SGLang says of a failure what it says of a success."""
        async with self._turn:
            try:
                await self._serve(read, version, aborts)
            except Problem as problem:
                said = {"success": False, "message": problem.message, "num_paused_requests": 0}
                self._metrics.count_problem(problem.status)
                return as_json(said, problem.status)
        message = f"Succeeded to update model weights. Weight version updated to {self._engine.version}."
        return as_json({"success": True, "message": message, "num_paused_requests": 0})

    async def _serve(self, read: Callable[[], LanguagePolicy], version: str | None, aborts: bool = False) -> None:
        """Read weights, and serve them, as the next version where none is given.

        Raises:
            Problem: 400, saying what is wrong with them; the old ones go on being served.
        """
        number = self._engine.version + 1 if version is None else int(version)
        try:
            policy = await asyncio.to_thread(read)
            if aborts:
                await self._abort_running()
            await asyncio.to_thread(self._engine.update, policy, number)
        except (ArtifactError, ConfigError) as error:
            self._metrics.count_update(is_served=False)
            raise Problem(400, f"version {self._engine.version} goes on being served: {error}") from error
        self._metrics.count_update(is_served=True)

    async def _abort_running(self) -> None:
        was_paused = self._engine.scheduler.is_paused
        await self._pause("abort")
        if not was_paused:
            self._engine.resume()


def _parse(kind: type[B], body: bytes) -> B:
    """A body that may be left out."""
    return parse(kind, body or b"{}")


def _tensors_of(info: UpdateInfo, policy: LanguagePolicy) -> Mapping[str, Tensor]:
    """Some or all of a policy's weights.

    Raises:
        Problem: 400 for what cannot be read, or is no weight of the policy.
    """
    try:
        if info.path is not None and info.safetensors is None:
            tensors: Mapping[str, Tensor] = read_folder(info.path).model.weights()
        elif info.safetensors is not None and info.path is None:
            tensors = unpacked(info.safetensors)
        else:
            raise ConfigError("update_info holds either a path or safetensors: tensors cannot be taken another way")
        check_kinds(policy, tensors)
    except (ArtifactError, ConfigError) as error:
        raise Problem(400, str(error)) from error
    return tensors

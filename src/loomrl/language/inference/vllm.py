"""A client of vLLM's server: completions by its OpenAI interface, weights by its development endpoints.

Start the server with `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs`, for
log-probabilities of what was drawn from. It does not tell which version made a completion, so the version is read
before and after, and a completion that an update overtook is asked for again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from loomrl.errors import ServiceError
from loomrl.language.inference.engine import Completion, Completions, PauseMode, Prompt, Sampling
from loomrl.language.inference.remote import (
    EngineRefused,
    RemoteEngine,
    common_fields,
    field_of,
    tensors_of,
    version_of,
)


class VLLMEngine(RemoteEngine):
    """A vLLM server as an `InferenceEngine`; further arguments are those of `RemoteEngine`. Every method raises
    ServiceError when the server gives no answer in time, fails or refuses the request.

    Args:
        url: where it is served.
        transfer: "update", by the four phases of its weight transfer with a backend that reads folders, which the
            built-in engine has too; or "reload", by its workers' `reload_weights`.
    """

    def __init__(self, url: str, *, transfer: Literal["update", "reload"] = "update", **others: Any) -> None:
        super().__init__(url, **others)
        self._way = transfer

    @property
    def version(self) -> int:
        """The version of the weights the server has now, by its `/weight_info`; 0 where they were given none. Raises
        ServiceError when it does not say, as a server without VLLM_SERVER_DEV_MODE=1."""
        try:
            answer = self._connection.request("GET", "/weight_info")
        except EngineRefused as error:
            raise ServiceError(f"{error}; start vLLM with VLLM_SERVER_DEV_MODE=1") from error
        return version_of(field_of(answer, "weight_version"))

    def resume(self) -> None:
        """Have the server go on, after `pause`. Raises ServiceError when it does not confirm that."""
        self._connection.request("POST", "/resume")

    def _pause_request(self, mode: PauseMode) -> tuple[str, str, Mapping[str, Any] | None]:
        return "POST", f"/pause?mode={mode}", None

    def _transfer(self, folder: Path, version: int) -> None:
        if self._way == "reload":
            arguments = {"weights_path": str(folder)}
            self._connection.request_once("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
            self._finish("/update_weight_version", {"new_version": str(version)})
            return
        self._connection.request_once("POST", "/init_weight_transfer_engine", {"init_info": {}})
        self._connection.request_once("POST", "/start_weight_update")
        for info in self._infos(folder):
            self._connection.request_once("POST", "/update_weights", {"update_info": info})
        self._finish("/finish_weight_update", {"weight_version": str(version)})

    def _finish(self, path: str, body: Mapping[str, Any]) -> None:
        """A request by which the weights are there already: refused or not, the engine may hold the new ones."""
        try:
            self._connection.request_once("POST", path, body)
        except EngineRefused as error:
            raise ServiceError(str(error)) from error

    def _infos(self, folder: Path) -> list[dict[str, str]]:
        if self._shares_folder:
            return [{"path": str(folder)}]
        return [{"safetensors": tensors} for tensors in tensors_of(folder)]

    def _complete(self, prompt: Prompt, n: int, sampling: Sampling) -> Completions:
        while True:
            before = self.version
            answer = self._connection.request("POST", "/v1/completions", _request_body(prompt, n, sampling))
            choices = sorted(field_of(answer, "choices"), key=lambda choice: int(field_of(choice, "index")))
            if len(choices) != n:
                raise ServiceError(f"vLLM answered {len(choices)} completions of {n}; see its log")
            if "weight_version" in choices[0] or self.version == before:
                prompt_token_ids = field_of(choices[0], "prompt_token_ids")
                return Completions(prompt_token_ids, [_completion(choice, before) for choice in choices])


def _request_body(prompt: Prompt, n: int, sampling: Sampling) -> dict[str, Any]:
    body = {
        **common_fields(n, sampling),
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": sampling.max_tokens,
        "top_k": sampling.top_k or 0,
        "logprobs": 0,
        "return_token_ids": True,
    }
    return body if sampling.seed is None else {**body, "seed": sampling.seed}


def _completion(choice: Mapping[str, Any], version: int) -> Completion:
    return Completion(
        field_of(choice, "token_ids"),
        field_of(choice, "logprobs", "token_logprobs"),
        field_of(choice, "finish_reason"),
        field_of(choice, "text"),
        version_of(choice["weight_version"]) if "weight_version" in choice else version,
        choice.get("stop_reason"),
    )

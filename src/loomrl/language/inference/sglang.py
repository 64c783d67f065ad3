"""A client of SGLang's server by its native interface, weights included.

An update ends what runs unfinished, for SGLang waits for nothing when it pauses; what it cut short is asked for again,
so that every completion is of one version.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

_MODES = {"abort": "abort", "wait": "abort", "keep": "retract"}


class SGLangEngine(RemoteEngine):
    """An SGLang server as an `InferenceEngine`; arguments are those of `RemoteEngine`. Every method raises ServiceError
    when the server gives no answer in time, fails or refuses the request. `pause("wait")` ends what runs, as "abort"
    does."""

    @property
    def version(self) -> int:
        """The version of the weights the server has now, by its `/model_info`; 0 where they were given none. Raises
        ServiceError when it does not say."""
        return version_of(field_of(self._connection.request("GET", "/model_info"), "weight_version"))

    def resume(self) -> None:
        """Have the server go on, after `pause`. Raises ServiceError when it does not confirm that."""
        self._connection.request("POST", "/continue_generation", {})

    def _pause_request(self, mode: PauseMode) -> tuple[str, str, Mapping[str, Any] | None]:
        return "POST", "/pause_generation", {"mode": _MODES[mode]}

    def _transfer(self, folder: Path, version: int) -> None:
        body: dict[str, Any] = {"weight_version": str(version), "flush_cache": True}
        if self._shares_folder:
            path, body = "/update_weights_from_disk", {**body, "model_path": str(folder)}
        else:
            path = "/update_weights_from_tensor"
            body |= {"serialized_named_tensors": tensors_of(folder), "load_format": "safetensors"}
        answer = self._connection.request_once("POST", path, body)
        if field_of(answer, "success") is not True:
            raise EngineRefused(f"SGLang refused the weights: {answer.get('message')}", 200)

    def _complete(self, prompt: Prompt, n: int, sampling: Sampling) -> Completions:
        token_ids = self._tokens_of(prompt)
        body = {"input_ids": token_ids, "sampling_params": _params(n, sampling), "return_logprob": True}
        answer = self._connection.request("POST", "/generate", body)
        answers = answer if isinstance(answer, list) else [answer]
        if len(answers) != n:
            raise ServiceError(f"SGLang answered {len(answers)} completions of {n}; see its log")
        return Completions(token_ids, [_completion(answer) for answer in answers])

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        tokens: list[int] = field_of(self._connection.request("POST", "/tokenize", {"prompt": prompt}), "tokens")
        return tokens


def _params(n: int, sampling: Sampling) -> dict[str, Any]:
    params = {**common_fields(n, sampling), "max_new_tokens": sampling.max_tokens, "top_k": sampling.top_k or -1}
    return params if sampling.seed is None else {**params, "sampling_seed": sampling.seed}


def _completion(answer: Mapping[str, Any]) -> Completion:
    pairs = field_of(answer, "meta_info", "output_token_logprobs")
    reason = field_of(answer, "meta_info", "finish_reason")
    return Completion(
        [int(field_of(pair, 1)) for pair in pairs],
        [float(field_of(pair, 0)) for pair in pairs],
        field_of(reason, "type"),
        field_of(answer, "text"),
        version_of(field_of(answer, "meta_info", "weight_version")),
        reason.get("matched"),
    )

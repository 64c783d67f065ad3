"""What a served engine answers, as types, in the shapes of vLLM, SGLang and OpenAI."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class Model(TypedDict):
    """A model as OpenAI lists it, and how many tokens it has room for."""

    id: str
    object: Literal["model"]
    max_model_len: int


class Models(TypedDict):
    """The answer of `GET /v1/models`: a list with the only model, `loomrl`."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(TypedDict):
    """The answer of `POST /tokenize`: token ids, their number, and the context length in tokens."""

    tokens: list[int]
    count: int
    max_model_len: int


class VLLMGenerated(TypedDict):
    """Completions as vLLM's example server tells them; tokens where log-probabilities were asked for."""

    text: list[str]
    prompt: str
    finish_reasons: list[str]
    weight_version: str
    logprobs: NotRequired[list[list[list[dict[str, float]]]]]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[list[int]]]


class SGLangGenerated(TypedDict):
    """One completion in SGLang's form: text, token ids, and `meta_info` with version and finish reason."""

    text: str
    output_ids: list[int]
    meta_info: dict[str, Any]


Generated = VLLMGenerated | SGLangGenerated | list[SGLangGenerated]


class Usage(TypedDict):
    """Numbers of tokens: of the prompt, of the completions, and in total."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class OpenAIAnswer(TypedDict):
    """Completions as OpenAI tells them; `metadata` has the version where all are of one."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage
    metadata: dict[str, str | None]
    prompt_token_ids: NotRequired[list[int]]


class ModelInfo(TypedDict):
    """The answer of SGLang's `GET /model_info`: the model and the version of its weights."""

    model_path: str
    is_generation: bool
    weight_version: str


class Updated(TypedDict):
    """The answer of SGLang's weight updates: whether the new weights are served, and if not, why."""

    success: bool
    message: str
    num_paused_requests: int


class MessageReply(TypedDict):
    """The answer of a route that changes the engine: a message on what was done."""

    message: str
    status: NotRequired[str]


class WeightInfo(TypedDict):
    """The answer of vLLM's `GET /weight_info`: the version of the served weights."""

    weight_version: str


class WorldSize(TypedDict):
    """The answer of vLLM's `GET /get_world_size`: the number of processes that hold the weights."""

    world_size: int


class IsPaused(TypedDict):
    """The answer of vLLM's `GET /is_paused`: whether the engine begins no new request."""

    is_paused: bool


class Paused(TypedDict):
    """The answer of `POST /pause` and `POST /resume`: whether the engine is paused or running."""

    status: Literal["paused", "resumed"]


class Reloaded(TypedDict):
    """The answer of `POST /collective_rpc`: one null for each process that loaded the weights; there is one process."""

    results: list[None]


class Renamed(TypedDict):
    """The answer of `POST /update_weight_version`: the version that is served from now on."""

    success: bool
    message: str
    new_version: str

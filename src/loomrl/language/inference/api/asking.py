"""What clients of vLLM, SGLang and OpenAI send when they want completions, read into one form.

Fields that are not known are dropped, as those servers do; a field that is known and asks for what this engine does not
do is refused, unless it has the value that changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from loomrl.language.inference.engine import Prompt, Sampling
from loomrl.language.policies.sampling import Temperature
from loomrl.language.policies.tokens import Tokenizer
from loomrl.language.trajectory.wire import Body, Int64

_MAX_PROMPTS = 1_024  # of one request
_MAX_STOPS, _MAX_STOP = 64, 256

TokenIds = Annotated[list[Int64], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True, max_length=_MAX_PROMPTS)]
Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP)]
Stops = Annotated[list[Stop], Field(max_length=_MAX_STOPS)]
Count = Annotated[int, Field(ge=1, le=1_024)]


@dataclass(frozen=True)
class CompletionRequest:
    """A request for `n` completions of each prompt, in the one form that all APIs are translated to."""

    prompts: Sequence[Prompt]
    n: int
    sampling: Sampling
    wants_log_probs: bool = False
    is_single: bool = True  # one prompt that did not come in a list

    @classmethod
    def of_prompts(cls, given: Prompt | Sequence[Prompt], n: int, sampling: Sampling, wants_log_probs: bool) -> Self:
        """A request for `n` completions of one prompt, a text or token ids, or of each prompt in a list of such. An
        empty list is one prompt without tokens."""
        is_list = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        prompts: Any = given if is_list else [given]
        return cls(prompts, n, sampling, wants_log_probs, not is_list)


class SamplingFields(Body):
    """How tokens are drawn, in the words that the three have in common."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "stream": (False,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
        "min_tokens": (0,),
        "min_new_tokens": (0,),
        "logit_bias": ({},),
        "use_beam_search": (False,),
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
        "tools": ([],),
        "response_format": ({"type": "text"},),
        "top_logprobs": (0, 1),
        "top_logprobs_num": (0,),
        "prompt_logprobs": (),
        "json_schema": (),
        "regex": (),
        "ebnf": (),
    }

    n: Count = 1
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # 0 and -1: all
    stop: Stop | Stops | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    seed: Int64 | None = None

    @model_validator(mode="before")
    @classmethod
    def _validate_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, neutral in cls.neutral.items():
                if (value := data.get(name)) is not None and value not in neutral:
                    allowed = " or ".join(map(repr, neutral))
                    raise ValueError(
                        f"this engine has no {name}; leave it out" + (f", or at {allowed}" if allowed else "")
                    )
        return data

    def sampling(self, max_tokens: int) -> Sampling:
        """These fields as the engine's `Sampling`, for at most `max_tokens` tokens; fields left out get the engine's
        defaults."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Sampling(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k if self.top_k and self.top_k > 0 else None,
            top_p=1.0 if self.top_p is None else self.top_p,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            seed=None if self.seed is None else self.seed % 2**63,
        )


class TokensPrompt(Body):
    """A prompt of vLLM's `/generate`: token ids, or a text."""

    prompt_token_ids: TokenIds | None = None
    prompt: str | None = None

    @model_validator(mode="after")
    def _validate_one_prompt(self) -> "TokensPrompt":
        if (self.prompt_token_ids is None) == (self.prompt is None):
            raise ValueError("give either prompt_token_ids or prompt")
        return self


class VLLMGenerate(SamplingFields):
    """`POST /generate` of vLLM's example server, and of the one that Atropos comes with."""

    prompt: str | TokensPrompt
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = None  # 0: of the tokens that were drawn

    def to_request(self) -> CompletionRequest:
        """This body as a `CompletionRequest` for its one prompt; 2**31 tokens at most where `max_tokens` is null."""
        prompt: Prompt
        if isinstance(self.prompt, TokensPrompt):
            given = self.prompt
            prompt = given.prompt if given.prompt is not None else given.prompt_token_ids or []
        else:
            prompt = self.prompt
        return CompletionRequest([prompt], self.n, self.sampling(self.max_tokens or _ALL), self.logprobs is not None)


class SGLangSampling(SamplingFields):
    """The `sampling_params` object in the body of SGLang's `POST /generate`."""

    max_new_tokens: Annotated[int, Field(ge=1)] | None = 128
    sampling_seed: Int64 | None = None


class SGLangGenerate(Body):
    """The body of SGLang's `POST /generate`: one or several prompts, as texts or as token ids."""

    text: str | Texts | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(max_length=_MAX_PROMPTS)] | None = None
    sampling_params: SGLangSampling = SGLangSampling()
    return_logprob: bool | None = False
    stream: bool | None = False

    @model_validator(mode="after")
    def _validate_one_prompt(self) -> "SGLangGenerate":
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give either text or input_ids")
        if self.stream:
            raise ValueError("this engine does not stream; leave stream out")
        return self

    def to_request(self) -> CompletionRequest:
        """This body as a `CompletionRequest` for all of its prompts; `is_single` where one came outside a list."""
        given = self.text if self.text is not None else self.input_ids
        assert given is not None
        params = self.sampling_params
        if params.sampling_seed is not None:
            params = params.model_copy(update={"seed": params.sampling_seed})
        sampling = params.sampling(params.max_new_tokens or _ALL)
        return CompletionRequest.of_prompts(given, params.n, sampling, bool(self.return_logprob))


class OpenAICompletion(SamplingFields):
    """The body of OpenAI's `POST /v1/completions`: one or several prompts, as texts or as token ids."""

    prompt: str | TokenIds | Texts | Annotated[list[TokenIds], Field(max_length=_MAX_PROMPTS)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    return_token_ids: bool | None = None

    def to_request(self) -> CompletionRequest:
        """This body as a `CompletionRequest` for all of its prompts; `is_single` where one came outside a list."""
        sampling = self.sampling(self.max_tokens or _ALL)
        return CompletionRequest.of_prompts(self.prompt, self.n, sampling, self.logprobs is not None)


class Tokenize(Body):
    """The body of `POST /tokenize` of vLLM and SGLang: the text to tokenize."""

    prompt: str


class TextPart(Body):
    """A text part of a chat message's content."""

    type: str
    text: str


class ChatMessage(Body):
    """One message of a conversation: its role, and its text or text parts."""

    role: str
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The text of the message; the parts of a list, joined without a separator."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class OpenAIChat(SamplingFields):
    """The body of OpenAI's `POST /v1/chat/completions`: one conversation to continue."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=_MAX_PROMPTS)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None

    def to_request(self, tokenizer: Tokenizer) -> CompletionRequest:
        """This body as a `CompletionRequest` whose one prompt is the conversation, as `Tokenizer.chat` writes it: for
        pretrained models with their chat template.

        Raises:
            ConfigError: for messages that the tokenizer does not take.
        """
        prompt = tokenizer.chat([{"role": message.role, "content": message.text} for message in self.messages])
        sampling = self.sampling(self.max_completion_tokens or self.max_tokens or _ALL)
        return CompletionRequest([prompt], self.n, sampling, bool(self.logprobs))


_ALL = 2**31  # as many tokens as the policy has room for

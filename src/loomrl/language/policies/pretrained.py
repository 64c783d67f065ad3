"""Language models of Hugging Face's `transformers`, from a folder on this machine; nothing is ever downloaded.

They generate, learn and are served as the small ones made here: their layers take keys and values from whatever
`TokenMemory` they are given. Weights are read from safetensors alone, computed in 32 bits and without dropout.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import safetensors.torch
import torch
from jinja2 import TemplateError
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache, DynamicLayer
from transformers.utils.logging import disable_progress_bar

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.policies.cache import SharedPrefix, TokenMemory
from loomrl.language.policies.model import LanguageModel, MemoryShape, ModelConfig, allowed, positions_of
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import Tokenizer
from loomrl.system.files import atomic_path, canonical_json, sha256
from loomrl.system.schema import Document

SETTINGS, VALUE_HEAD = "loomrl.json", "value_head.safetensors"  # beside the files that transformers writes
DEFAULT_MAX_TOKENS = 512  # an engine has room for twice as many in each of its rows
_TOLERANCE = 1e-3  # of log-probabilities

disable_progress_bar()


class PretrainedSettings(Document):
    """What LoomRL stores beside Hugging Face's files: the context length in tokens, and whether there is a
    value head."""

    max_tokens: int = Field(ge=2)
    value_head: bool


class PretrainedConfig(ModelConfig):
    """The config of a pretrained model; `architecture` is the SHA-256 digest of Hugging Face's own config, and each of
    `end_token_ids` ends an answer."""

    architecture: str
    end_token_ids: tuple[int, ...] = Field(min_length=1)


class PretrainedModel(LanguageModel):
    """A `LanguageModel` around `causal`, an `AutoModelForCausalLM` of Hugging Face's.

    Raises:
        ArtifactError: for an architecture that cannot be read piece by piece, or whose log-probabilities would not be
            those of its own forward pass.
    """

    config: PretrainedConfig

    def __init__(self, config: PretrainedConfig, causal: Any) -> None:
        super().__init__()
        self.config, self.end_token_ids = config, config.end_token_ids
        self.causal = causal.requires_grad_(True).eval()
        self.value_head = _silent_head(causal.config.hidden_size) if config.value_head else None
        self._require_agreement()

    def forward(self, tokens: Tensor, valid: Tensor, memory: TokenMemory) -> Tensor:
        """Read T more tokens (B, T) of each sequence; returns hidden states (B, T, width), see
        `LanguageModel.forward`."""
        num_new = tokens.shape[1]
        layers = [_Layer(memory, number) for number in range(self.memory_shape.num_layers)]
        said = self.causal.base_model(
            input_ids=tokens,
            attention_mask=allowed(valid, num_new),
            position_ids=positions_of(valid, num_new),
            past_key_values=Cache(layers=layers),
            use_cache=True,
        )
        hidden: Tensor = said.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., width) -> logits of the token that follows, (..., vocabulary_size)."""
        found: Tensor = self.causal.get_output_embeddings()(hidden)
        return found

    @property
    def memory_shape(self) -> MemoryShape:
        """How many layers, heads and numbers per head the model keeps of each token; heads that share keys and values
        count once."""
        config = self.causal.config
        num_heads = config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        num_kept = getattr(config, "num_key_value_heads", None) or num_heads
        return MemoryShape(config.num_hidden_layers, num_kept, head_width)

    def weights(self) -> dict[str, Tensor]:
        """All weights by Hugging Face's names; a weight that is tied to another is left out."""
        found = self.causal.state_dict()
        first = {value.data_ptr(): name for name, value in reversed(found.items())}
        own = {name: value for name, value in found.items() if first[value.data_ptr()] == name}
        return own | self._value_weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy in weights by Hugging Face's names. Those that are missing stay as they are, but for the value head's;
        unknown names are ignored.

        Raises:
            RuntimeError: where a weight has another shape.
            KeyError: where the model has a value head and its weights are missing; the others are taken.
        """
        own = self._value_weights()
        self.causal.load_state_dict({name: value for name, value in weights.items() if name not in own}, strict=False)
        if self.value_head is not None:
            names = self.value_head.state_dict()
            self.value_head.load_state_dict({name: weights[f"value_head.{name}"] for name in names})

    def _value_weights(self) -> dict[str, Tensor]:
        if self.value_head is None:
            return {}
        return {f"value_head.{name}": value for name, value in self.value_head.state_dict().items()}

    @torch.no_grad()
    def _require_agreement(self) -> None:
        """Compare with the model's own pass over a few tokens: padded, and in two pieces."""
        tokens = torch.arange(6)[None] % self.config.vocabulary_size
        padding, first, rest = torch.zeros(1, 2, dtype=torch.int64), tokens[:, :4], tokens[:, 4:]
        valid = torch.tensor([[False] * 2 + [True] * 6])
        memory = SharedPrefix()
        try:
            before = self(torch.cat([padding, first], 1), valid[:, :6], memory)[:, 2:]
            after = self(rest, valid, memory.continued_by(torch.tensor([0])))
            found = self.logits(torch.cat([before, after], 1)).log_softmax(-1)
            expected = self.causal(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
            agrees = torch.allclose(found, expected, atol=_TOLERANCE)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise ArtifactError(f"{self._kind} cannot be read piece by piece: {error}; take another model") from error
        if not agrees:
            raise ArtifactError(
                f"{self._kind} computes log-probabilities in a way of its own, which is not supported; take another"
            )

    @property
    def _kind(self) -> str:
        return f"the architecture {self.causal.config.model_type}"


def _silent_head(width: int) -> nn.Linear:
    """One that expects nothing."""
    with torch.random.fork_rng(devices=()):  # the constructor draws weights of its own from the global generator
        head = nn.Linear(width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers is not read by the type checker
    """One layer's keys and values, kept by a `TokenMemory`."""

    def __init__(self, memory: TokenMemory, number: int) -> None:
        super().__init__()
        self._memory, self._number = memory, number

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._memory.extend(self._number, keys, values)


class PretrainedTokenizer(Tokenizer):
    """A fast tokenizer of Hugging Face's, for a model of `vocabulary_size` tokens whose answers end with the id `end`.
    Its special tokens have ids of their own, not 0 to 2."""

    def __init__(self, tokenizer: Any, vocabulary_size: int, end: int) -> None:
        self._tokenizer, self._vocabulary_size, self._end = tokenizer, vocabulary_size, end
        started = tokenizer("a")["input_ids"][0]
        self.begin = tokenizer.bos_token if started == tokenizer.bos_token_id else ""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the model has logits for, which may be more than the tokenizer knows."""
        return self._vocabulary_size

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def prompt(self, text: str) -> list[int]:
        """The token ids of a prompt, with what the tokenizer puts before a text; of an empty text the end token."""
        return list(self._tokenizer(text)["input_ids"]) or [self._end]

    def answer(self, text: str) -> list[int]:
        """The ids of a whole answer: the text, then the end token."""
        return [*self.encode(text), self._end]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the text of one prompt, by the tokenizer's chat template; where it has none, the `content`
        of each message on a line of its own.

        Raises:
            ConfigError: when the template does not take these messages.
        """
        if self._tokenizer.chat_template is None:
            return super().chat(messages)
        try:
            said = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ConfigError(f"the tokenizer's chat template refuses these messages: {error}") from error
        return str(said)

    def to_json(self) -> dict[str, Any]:
        """A description by which two tokenizers can be compared; the tokenizer itself lies in the policy's folder."""
        return {"kind": "huggingface", "digest": sha256(self._tokenizer.backend_tokenizer.to_str().encode())}

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder, in Hugging Face's format. Raises OSError where that fails."""
        self._tokenizer.save_pretrained(folder)


class PretrainedPolicy(LanguagePolicy):
    """A language policy in Hugging Face's files, which vLLM and SGLang read, too."""

    model: PretrainedModel
    tokenizer: PretrainedTokenizer

    @classmethod
    def open(cls, folder: Path, *, max_tokens: int = DEFAULT_MAX_TOKENS, value_head: bool = False) -> Self:
        """A policy of the model in a folder, as it was published.

        Args:
            folder: with `config.json`, safetensors and a tokenizer.
            max_tokens: tokens of a prompt and its answer together; at most what the model itself can take.
            value_head: add a value head, whose estimates are 0 at first; PPO needs one.

        Raises:
            ArtifactError: where the folder holds no such model, or one of an architecture that is not supported.
        """
        causal, tokenizer = _read(folder)
        described = {**causal.config.to_dict(), "_name_or_path": "", "transformers_version": "", "dtype": ""}
        vocabulary_size = len(causal.get_output_embeddings().weight)
        ends = _end_token_ids(causal, tokenizer, vocabulary_size)
        config = PretrainedConfig(
            vocabulary_size=vocabulary_size,
            max_tokens=min([max_tokens, *_bounds(causal.config)]),
            value_head=value_head,
            architecture=sha256(canonical_json(described)),
            end_token_ids=ends,
        )
        return cls(PretrainedTokenizer(tokenizer, vocabulary_size, ends[0]), PretrainedModel(config, causal))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a policy that `save` wrote, with its `max_tokens` and value head; any other folder as `open` reads it.

        Raises:
            ArtifactError: naming what is missing, torn or does not fit, or an architecture that is not supported.
        """
        if not (folder / SETTINGS).is_file():
            return cls.open(folder)
        settings = PretrainedSettings.read(folder / SETTINGS)
        policy = cls.open(folder, max_tokens=settings.max_tokens, value_head=settings.value_head)
        if settings.value_head:
            own = {name: value for name, value in policy.model.weights().items() if not name.startswith("value_head.")}
            try:
                found = safetensors.torch.load((folder / VALUE_HEAD).read_bytes())
                policy.model.load_weights({**own, **found})
            except (KeyError, OSError, SafetensorError, RuntimeError) as error:
                raise ArtifactError(f"{folder / VALUE_HEAD} is no value head of this policy: {error}") from error
        return policy

    def save(self, folder: Path) -> None:
        """Write Hugging Face's files of model and tokenizer, and beside them `loomrl.json` and, of a value head,
        `value_head.safetensors`. Each file is whole, or as it was before; they are replaced one by one at the end.

        Raises:
            OSError or SafetensorError: when the folder cannot be made, or has no room; no file was changed.
            ArtifactError: when a file cannot be written or replaced; others may have been.
        """
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().clone() for name, value in self.model.weights().items()}
        of_values = {name: weights.pop(name) for name in list(weights) if name.startswith("value_head.")}
        with TemporaryDirectory(prefix=".saving.", dir=folder) as name:
            temporary = Path(name)
            self.model.causal.save_pretrained(temporary, state_dict=weights)
            self.tokenizer.save(temporary)
            if of_values:
                (temporary / VALUE_HEAD).write_bytes(safetensors.torch.save(of_values))
            config = self.model.config
            settings = PretrainedSettings(max_tokens=config.max_tokens, value_head=config.value_head)
            settings.write(temporary / SETTINGS)
            for written in sorted(temporary.iterdir()):
                with atomic_path(folder / written.name) as target:
                    os.replace(written, target)


def _read(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder.

    Raises:
        ArtifactError: where they are not whole.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is no folder; models are read from this machine and never downloaded")
    try:
        causal, told = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,  # else it would ask at the terminal whether to run the folder's own code
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, KeyError, RuntimeError, SafetensorError, ValueError) as error:
        raise ArtifactError(f"{folder} holds no model and tokenizer that transformers can read: {error}") from error
    if incomplete := sorted([*told["missing_keys"], *map(str, told["mismatched_keys"])]):
        raise ArtifactError(f"{folder}: these weights are missing or do not fit: {', '.join(incomplete)}")
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ArtifactError(f"{folder} has no tokenizer.json; convert its tokenizer to a fast one")
    return causal, tokenizer


def _end_token_ids(causal: Any, tokenizer: Any, vocabulary_size: int) -> tuple[int, ...]:
    """What ends an answer, the tokenizer's own end first."""
    said = causal.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(said if isinstance(said, list) else [said])]
    found = tuple(dict.fromkeys(one for one in ends if one is not None and one < vocabulary_size))
    if not found:
        raise ArtifactError("neither tokenizer nor generation_config.json names an end token; set eos_token")
    return found


def _bounds(config: Any) -> list[int]:
    """How many tokens a model can look back on."""
    said = (getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window"))
    return [int(one) for one in said if one]

"""A language policy: a tokenizer and a transformer, and their files `policy.json` and `policy.safetensors`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from loomrl.algorithms.architecture import ARCHITECTURE, WEIGHTS, PolicyArchitecture
from loomrl.algorithms.base import below
from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.policies.generation import generate
from loomrl.language.policies.model import LanguageModel
from loomrl.language.policies.sampling import SamplingConfig, TokenCompletion
from loomrl.language.policies.tokens import ByteTokenizer, Tokenizer, tokenizer_from_json
from loomrl.language.policies.transformer import Transformer, TransformerConfig
from loomrl.system.files import atomic_path, read_json
from loomrl.system.schema import Document
from loomrl.types import Json


class LanguageArchitecture(Document):
    """`policy.json` of a language policy: what to build before its weights are loaded."""

    format_version: Literal[1] = 1
    algorithm: Literal["language"] = "language"
    tokenizer: Json  # as `Tokenizer.to_json` describes it
    transformer: Json  # a `TransformerConfig`


class LanguagePolicy:
    """A language policy: a tokenizer and a model, which answer texts. A learner changes the same object in place.

    Raises:
        ConfigError: where tokenizer and model differ in vocabulary size.
    """

    def __init__(self, tokenizer: Tokenizer, model: LanguageModel) -> None:
        if tokenizer.vocabulary_size != model.config.vocabulary_size:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocabulary_size} tokens, the model {model.config.vocabulary_size}"
            )
        self.tokenizer: Tokenizer = tokenizer
        self.model: LanguageModel = model

    @classmethod
    def fresh(cls, seed: int, tokenizer: Tokenizer | None = None, **transformer: Any) -> "LanguagePolicy":
        """A policy that has learnt nothing, with weights drawn by `seed`; of bytes where no tokenizer is given.
        `transformer` are fields of `TransformerConfig`.

        Raises:
            ConfigError: for a value that the config does not allow.
        """
        tokenizer = tokenizer or ByteTokenizer()
        try:
            config = TransformerConfig(vocabulary_size=tokenizer.vocabulary_size, **transformer)
        except ValidationError as error:
            raise ConfigError(f"transformer: {error.errors()[0]['msg']}") from error
        return cls(tokenizer, Transformer(config, torch.Generator().manual_seed(seed)))

    def answer(
        self, prompts: Sequence[str], num_samples: int, sampling: SamplingConfig, generator: torch.Generator
    ) -> list[list[TokenCompletion]]:
        """`num_samples` completions of each prompt, as tokens: a list for each prompt, in their order.

        Raises:
            ConfigError: for a text that the tokenizer does not know, or that leaves no room for `max_tokens`.
            LoomRLError: where the model's logits are no numbers.
        """
        return generate(self.model, [self.tokenizer.prompt(text) for text in prompts], num_samples, sampling, generator)

    def text(self, completion: TokenCompletion) -> str:
        """The text of a completion, decoded from its tokens; special tokens such as the end are left out."""
        return self.tokenizer.decode(completion.token_ids)

    def with_model(self, model: LanguageModel) -> Self:
        """A new policy with the same tokenizer and another model of the same kind.

        Raises:
            ConfigError: where the model has another vocabulary size.
        """
        return type(self)(self.tokenizer, model)

    def save(self, folder: Path) -> None:
        """Write `policy.safetensors` and then `policy.json`, the same bytes for the same policy. Each is whole, or as
        it was before.

        Raises:
            OSError: when the folder cannot be made.
            ArtifactError: when a file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone() for name, value in sorted(self.model.state_dict().items())}
        with atomic_path(folder / WEIGHTS) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors))
        transformer = self.model.config.model_dump(mode="json")
        LanguageArchitecture(tokenizer=self.tokenizer.to_json(), transformer=transformer).write(folder / ARCHITECTURE)

    @classmethod
    def load(cls, folder: Path) -> "LanguagePolicy":
        """Read a language policy from a folder that `save` or the training stage wrote, or that holds a Hugging Face
        model.

        Raises:
            ArtifactError: naming the file that is missing, torn or does not fit.
            ConfigError: for a Hugging Face model, where `transformers` is not installed.
        """
        if not (folder / ARCHITECTURE).exists() and (folder / "config.json").exists():
            return _pretrained(folder)
        tokenizer, transformer, prefix = _described(folder / ARCHITECTURE)
        try:
            config = TransformerConfig.model_validate(transformer)
            policy = cls(tokenizer_from_json(tokenizer), Transformer(config, torch.Generator()))
        except (ValidationError, ConfigError) as error:
            raise ArtifactError(f"{folder / ARCHITECTURE} describes no language policy: {error}") from error
        path = folder / WEIGHTS
        try:
            policy.model.load_state_dict(below(prefix, safetensors.torch.load(path.read_bytes())))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ArtifactError(f"{path} does not hold this policy's weights: {error}; train it again") from error
        return policy


def _pretrained(folder: Path) -> LanguagePolicy:
    try:
        from loomrl.language.policies.pretrained import PretrainedPolicy
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{folder} holds a Hugging Face model, and {error.name} is not installed; pip install 'loomrl[huggingface]'"
        ) from error
    return PretrainedPolicy.load(folder)


def _described(path: Path) -> tuple[Json, Json, str]:
    """Tokenizer, transformer, and how the names of its weights begin, of a `policy.json`.

    Raises:
        ArtifactError: when it is missing, torn, or of a policy that reads no texts.
    """
    document = read_json(path)
    if not isinstance(document, dict) or "network" not in document:
        architecture = LanguageArchitecture.read(path)
        return architecture.tokenizer, architecture.transformer, ""
    trained = PolicyArchitecture.read(path)
    if "vocabulary_size" not in trained.network:
        raise ArtifactError(f"{path} describes a policy of {trained.algorithm}, which reads no texts")
    return ByteTokenizer().to_json(), trained.network, "model."

"""Text as token ids: padding 0, begin 1, end 2, then bytes or the characters of an alphabet.

An id never changes its meaning, and a tokenizer is described by JSON, so that weights, recorded trajectories and
engines agree about it for good.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loomrl.errors import ArtifactError, ConfigError

PAD, BOS, EOS = 0, 1, 2
BEGIN = "<|begin|>"  # as a text
_NUM_SPECIAL = 3


class Tokenizer(ABC):
    """Converts texts to token ids and back. Ids 0 to 2 are padding, begin and end; none of them stands in a text.
    `encode`, `prompt` and `answer` raise ConfigError for a text that holds what has no token.

    `num_symbols` counts the other tokens; `begin` is, as a text, what `prompt` puts before a text.
    """

    num_symbols: int
    begin: str = BEGIN

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are: the three special tokens and all symbols."""
        return _NUM_SPECIAL + self.num_symbols

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens.

        Raises:
            ConfigError: where the text holds what has no token.
        """

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; special tokens are left out."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A description, JSON values, from which `tokenizer_from_json` makes an equal tokenizer."""

    def prompt(self, text: str) -> list[int]:
        """The ids a policy reads before it answers: begin, then the text."""
        return [BOS, *self.encode(text)]

    def answer(self, text: str) -> list[int]:
        """The ids of a whole answer: the text, then end."""
        return [*self.encode(text), EOS]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the text of one prompt: the `content` of each message on a line of its own."""
        return "\n".join(message["content"] for message in messages)


class ByteTokenizer(Tokenizer):
    """A tokenizer with a token for each byte of UTF-8: takes any text, has 259 tokens."""

    num_symbols = 256

    def encode(self, text: str) -> list[int]:
        """The token ids of a text's UTF-8 bytes, without special tokens; each is 3 more than the byte."""
        return [_NUM_SPECIAL + byte for byte in text.encode()]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, without special tokens; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: for an id above 258.
        """
        return bytes(token - _NUM_SPECIAL for token in tokens if token >= _NUM_SPECIAL).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """`{"kind": "byte"}`, from which `tokenizer_from_json` makes an equal tokenizer."""
        return {"kind": "byte"}


class CharacterTokenizer(Tokenizer):
    """A tokenizer with a token for each character of an alphabet, in its order: fewer tokens, less to compute.

    Raises:
        ConfigError: where a character is there twice, and from `encode` for one that is not there.
    """

    def __init__(self, alphabet: str) -> None:
        self._alphabet = alphabet
        self._ids = {character: _NUM_SPECIAL + index for index, character in enumerate(alphabet)}
        if len(self._ids) != len(alphabet):
            raise ConfigError(f"the alphabet {alphabet!r} holds a character twice; name each once")
        self.num_symbols = len(alphabet)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text's characters, without special tokens.

        Raises:
            ConfigError: naming a character that is not in the alphabet.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ConfigError(
                f"{error.args[0]!r} of {text[:60]!r} is not in the alphabet {self._alphabet!r}; add it, or use bytes"
            ) from error

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; special tokens are left out.

        Raises:
            IndexError: for an id beyond the alphabet.
        """
        return "".join(self._alphabet[token - _NUM_SPECIAL] for token in tokens if token >= _NUM_SPECIAL)

    def to_json(self) -> dict[str, Any]:
        """The kind and the alphabet, from which `tokenizer_from_json` makes an equal tokenizer."""
        return {"kind": "character", "alphabet": self._alphabet}


def tokenizer_from_json(described: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `to_json` described.

    Raises:
        ArtifactError: where it describes none.
        ConfigError: where its alphabet holds a character twice.
    """
    match described:
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "character", "alphabet": str(alphabet)}:
            return CharacterTokenizer(alphabet)
    raise ArtifactError(f"{described} describes no tokenizer; its kind is byte, or character with an alphabet")

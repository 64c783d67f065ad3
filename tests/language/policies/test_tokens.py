"""Tokens: stable ids, any text back as it was, and a description that makes the same tokenizer."""

import json

import pytest

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.policies.tokens import BOS, EOS, ByteTokenizer, CharacterTokenizer, Tokenizer, tokenizer_from_json

TOKENIZERS = [ByteTokenizer(), CharacterTokenizer("0123456789+=")]


def test_ids_are_those_of_ever() -> None:
    assert ByteTokenizer().prompt("1+ü") == [BOS, 3 + 49, 3 + 43, 3 + 0xC3, 3 + 0xBC]
    assert CharacterTokenizer("ab").answer("ba") == [4, 3, EOS]
    assert [one.vocabulary_size for one in TOKENIZERS] == [259, 15]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_text_comes_back_without_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*tokenizer.prompt("12+34="), *tokenizer.answer("46"), 0, 0]) == "12+34=46"


def test_bytes_take_any_text_and_give_one_for_any_ids() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("größe 数 🙂\n")) == "größe 数 🙂\n"
    assert tokenizer.decode([3 + 0xFF, 3 + 65]) == "\ufffdA"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_description_makes_it_again(tokenizer: Tokenizer) -> None:
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again.encode("12+3=") == tokenizer.encode("12+3=")
    assert again.to_json() == tokenizer.to_json()


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="'x' of '1x' is not in the alphabet '12'"):
        CharacterTokenizer("12").encode("1x")
    with pytest.raises(ConfigError, match="twice"):
        CharacterTokenizer("11")
    with pytest.raises(ArtifactError, match="describes no tokenizer"):
        tokenizer_from_json({"kind": "character"})

"""A policy's tokenizer as files that Hugging Face's `AutoTokenizer.from_pretrained` reads.

Atropos environments make the tokens they post by such a tokenizer, and these must be the ones the engine reads. The
chat template writes what `/v1/chat/completions` of the engine reads: begin, then a line for each message.
"""

from pathlib import Path
from typing import Any

from loomrl.errors import ConfigError
from loomrl.language.policies.tokens import BEGIN, BOS, EOS, PAD, ByteTokenizer, CharacterTokenizer, Tokenizer
from loomrl.system.files import write_json

SPECIAL = {"<|pad|>": PAD, BEGIN: BOS, "<|end|>": EOS}
CHAT_TEMPLATE = (  # a newline behind a block would be trimmed
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{{ '' if loop.last else '\\n' }}{% endfor %}"
)
_FIRST_BYTE = 3  # the token id of byte 0


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_tokens: int) -> None:
    """Write a tokenizer to `tokenizer.json` and `tokenizer_config.json` in a folder, which is made where it is not
    there. `max_tokens` is how many tokens its policy reads at most.

    Raises:
        ConfigError: for a tokenizer that came from such files; nothing is written.
        ArtifactError: when a file cannot be written.
        OSError: when the folder cannot be made.
    """
    described = _tokenizer_json(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", described)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "<|pad|>",
            "bos_token": BEGIN,
            "eos_token": "<|end|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_tokens,
        },
    )


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    splitting, model, decoder = _parts(tokenizer)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text, token_id in SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": splitting,
        "post_processor": _BEGIN_FIRST,
        "decoder": decoder,
        "model": model,
    }


def _parts(tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """How a text is split, what the pieces' ids are, and how they become a text again."""
    match tokenizer:
        case ByteTokenizer():
            symbols = {character: _FIRST_BYTE + byte for byte, character in enumerate(_characters_of_bytes())}
            level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
            return level, _pairs_of_none({**SPECIAL, **symbols}), level
        case CharacterTokenizer():
            alphabet = tokenizer.to_json()["alphabet"]
            symbols = {character: tokenizer.encode(character)[0] for character in alphabet}
            each = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
            return each, _pairs_of_none({**SPECIAL, **symbols}), {"type": "Fuse"}
    raise ConfigError("the tokenizer is Hugging Face's own already: pass the policy's folder as tokenizer_name")


def _pairs_of_none(vocabulary: dict[str, int]) -> dict[str, Any]:
    """Byte pair encoding that joins nothing."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": [],
    }


def _characters_of_bytes() -> list[str]:
    """The visible character that stands for each byte in byte-level tokenizers (Radford et al. 2019, section 2.2)."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


_BEGIN_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [
        {"SpecialToken": {"id": BEGIN, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
    ],
    "special_tokens": {BEGIN: {"id": BEGIN, "ids": [BOS], "tokens": [BEGIN]}},
}

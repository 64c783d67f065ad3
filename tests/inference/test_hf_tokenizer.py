"""The files for Hugging Face's tokenizers: the same ids, texts and conversations as the engine's own."""

import random
from pathlib import Path
from typing import Any

import pytest
from atropos import ask_reference
from language_policies import ALPHABET, language_policy
from typer.testing import CliRunner

from loomrl.inference.asking import OpenAIChat
from loomrl.inference.commands import app
from loomrl.inference.hf_tokenizer import write_tokenizer
from loomrl.language.tokens import ByteTokenizer, CharacterTokenizer, Tokenizer

_READ = """
import json, sys
from transformers import AutoTokenizer
asked = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
print(json.dumps({
    "ids": [tokenizer.encode(text) for text in asked["texts"]],
    "texts": [tokenizer.decode(ids, skip_special_tokens=True) for ids in asked["ids"]],
    "chat": tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True),
    "special": [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.model_max_length],
}))
"""


@pytest.mark.parametrize(
    ("tokenizer", "symbols"),
    [(ByteTokenizer(), "ab é€𝄞\n\t<|begin|>12+="), (CharacterTokenizer(f"{ALPHABET}\n"), f"{ALPHABET}\n")],
)
def test_environments_read_and_write_as_the_engine_does(tokenizer: Tokenizer, symbols: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices(symbols, k=rng.randrange(30))) for _ in range(100)]
    ids = [[rng.randrange(tokenizer.vocabulary_size) for _ in range(rng.randrange(20))] for _ in range(100)]
    messages = [{"role": "system", "content": "1+"}, {"role": "user", "content": "2="}]
    write_tokenizer(tokenizer, tmp_path, max_tokens=48)
    said: dict[str, Any] = ask_reference(
        _READ, {"folder": str(tmp_path), "texts": texts, "ids": ids, "messages": messages}
    )
    assert said["ids"] == [tokenizer.prompt(text) for text in texts]
    assert said["texts"] == [tokenizer.decode(one) for one in ids]
    [prompt] = OpenAIChat.model_validate({"messages": messages}).ask().prompts
    assert said["chat"] == f"<|begin|>{prompt}"
    assert said["special"] == [0, 1, 2, 48]


def test_a_command_writes_them(tmp_path: Path) -> None:
    language_policy().save(tmp_path / "policy")
    written = CliRunner().invoke(app, ["tokenizer", "--policy", str(tmp_path / "policy"), str(tmp_path / "files")])
    assert written.exit_code == 0, written.output
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]

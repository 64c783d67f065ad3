"""The files for Hugging Face's tokenizers: the same ids, texts and conversations as the engine's own."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.inference import app
from loomrl.language.inference.api.asking import OpenAIChat
from loomrl.language.inference.hf_tokenizer import write_tokenizer
from loomrl.language.policies.tokens import ByteTokenizer, CharacterTokenizer, Tokenizer
from tests.support.language_policies import ALPHABET, language_policy


@pytest.mark.parametrize(
    ("tokenizer", "symbols"),
    [(ByteTokenizer(), "ab é€𝄞\n\t<|begin|>12+="), (CharacterTokenizer(f"{ALPHABET}\n"), f"{ALPHABET}\n")],
)
def test_environments_read_and_write_as_the_engine_does(tokenizer: Tokenizer, symbols: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `huggingface` is not installed")
    rng = random.Random(0)
    texts = ["".join(rng.choices(symbols, k=rng.randrange(30))) for _ in range(100)]
    ids = [[rng.randrange(tokenizer.vocabulary_size) for _ in range(rng.randrange(20))] for _ in range(100)]
    messages = [{"role": "system", "content": "1+"}, {"role": "user", "content": "2="}]
    write_tokenizer(tokenizer, tmp_path, max_tokens=48)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.encode(text) for text in texts] == [tokenizer.prompt(text) for text in texts]
    assert [theirs.decode(one, skip_special_tokens=True) for one in ids] == [tokenizer.decode(one) for one in ids]
    [prompt] = OpenAIChat.model_validate({"messages": messages}).to_request(tokenizer).prompts
    said = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert said == f"{tokenizer.begin}{prompt}"
    special = [theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.model_max_length]
    assert special == [0, 1, 2, 48]


def test_a_command_writes_them(tmp_path: Path) -> None:
    language_policy().save(tmp_path / "policy")
    written = CliRunner().invoke(app, ["tokenizer", "--policy", str(tmp_path / "policy"), str(tmp_path / "files")])
    assert written.exit_code == 0, written.output
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]

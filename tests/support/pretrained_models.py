"""Tiny models of Hugging Face's in folders, with weights that nobody trained."""

from pathlib import Path
from typing import Any

import torch
import transformers

from loomrl.language.inference.hf_tokenizer import write_tokenizer
from loomrl.language.policies.tokens import ByteTokenizer

MAX_POSITIONS = 64
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS: dict[str, Any] = {
    "gpt2": transformers.GPT2Config(
        vocab_size=259, n_positions=MAX_POSITIONS, n_embd=16, n_layer=2, n_head=4, initializer_range=0.3, **ENDS
    ),
    "llama": transformers.LlamaConfig(
        vocab_size=259,
        max_position_embeddings=MAX_POSITIONS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        **ENDS,
    ),
}


def write_model(folder: Path, config: Any, seed: int = 0) -> Path:
    """A model of a config with random weights, and a tokenizer of bytes."""
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(ByteTokenizer(), folder, MAX_POSITIONS)
    return folder


def own_log_probs(folder: Path, prompt: list[int], answer: list[int], temperature: float = 1.0) -> torch.Tensor:
    """What transformers' own forward pass gives the tokens of an answer, (T,)."""
    causal = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        logits = causal(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).squeeze(1)

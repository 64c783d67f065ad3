"""Hugging Face transformers generating by the weights of a LoomRL policy: run by `benchmarks/inference.py`.

Our transformer is GPT-2's without biases in its dense layers, so its weights fit into `GPT2LMHeadModel`. Reads a
request as JSON, writes tokens and CPU seconds as JSON.
"""

import json
import sys
import time
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

_NAMES = {
    "attention_norm": "ln_1",
    "dense_norm": "ln_2",
    "attention.inputs": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "expand": "mlp.c_fc",
    "contract": "mlp.c_proj",
}


def model_of(path: str, sizes: dict[str, int]) -> GPT2LMHeadModel:
    """GPT-2 with the weights of a policy; biases that the policy has not are 0."""
    config = GPT2Config(
        vocab_size=sizes["vocabulary_size"],
        n_positions=sizes["max_tokens"],
        n_embd=sizes["width"],
        n_layer=sizes["num_layers"],
        n_head=sizes["num_heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    ours = load_file(path)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state["transformer.wte.weight"] = state["lm_head.weight"] = ours["token_embedding.weight"]
    state["transformer.wpe.weight"] = ours["position_embedding.weight"]
    state["transformer.ln_f.weight"], state["transformer.ln_f.bias"] = ours["norm.weight"], ours["norm.bias"]
    for name, value in ours.items():
        if name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            transposed = value.T if value.dim() == 2 else value  # GPT-2 keeps its matrices the other way round
            state[f"transformer.h.{layer}.{_NAMES[part]}.{kind}"] = transposed.contiguous()
    model.load_state_dict(state)
    return model


@torch.inference_mode()
def generate(model: GPT2LMHeadModel, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """The likeliest tokens, of all prompts at once."""
    width = max(map(len, prompts))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompts])
    mask = torch.tensor([[*[0] * (width - len(prompt)), *[1] * len(prompt)] for prompt in prompts])
    said: Any = model.generate(
        ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, use_cache=True
    )
    found: list[list[int]] = said[:, width:].tolist()
    return found


def main() -> None:
    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    model = model_of(asked["weights"], asked["sizes"])
    generate(model, asked["prompts"][:1], 2)  # what is made at the first call is made
    tokens: list[list[int]] = []
    started = time.process_time()
    for first in range(0, len(asked["prompts"]), asked["batch_size"]):
        tokens += generate(model, asked["prompts"][first : first + asked["batch_size"]], asked["num_tokens"])
    seconds = time.process_time() - started
    print(json.dumps({"tokens": tokens, "cpu_seconds": seconds}))


if __name__ == "__main__":
    main()

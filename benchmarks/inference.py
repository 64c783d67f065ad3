"""The built-in engine's tokens per CPU second beside other ways: `make peers`, then `python benchmarks/inference.py`.

The same policy, prompts and number of tokens for all, one thread, the ways in turns, several times: the built-in engine
asked for everything at once and for one prompt after the other, the transformer without any cache, and Hugging Face
transformers in batches and one by one, with the same weights in its GPT-2. All take the likeliest token, so all must
write the same. Writes `benchmarks/results/inference.json`.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from loomrl.language.inference import Sampling
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.system.files import write_json

BENCHMARKS = Path(__file__).parent
RESULTS = BENCHMARKS / "results" / "inference.json"
PEERS = BENCHMARKS.parent / ".venv-peers" / "bin" / "python"
SIZES = {"width": 128, "num_layers": 4, "num_heads": 4, "max_tokens": 128}
NUM_PROMPTS, NUM_ALONE, NUM_TOKENS, BATCH_SIZE, NUM_ROUNDS = 128, 16, 64, 64, 3
Tokens = list[list[int]]


def prompts_of(policy: LanguagePolicy, seed: int) -> Tokens:
    """Prompts of 8 to 40 tokens."""
    rng = np.random.default_rng(seed)
    texts = ["".join(map(str, rng.integers(10, size=int(rng.integers(7, 40))))) for _ in range(NUM_PROMPTS)]
    return [policy.tokenizer.prompt(text) for text in texts]


def built_in(policy: LanguagePolicy, prompts: Tokens, at_once: bool) -> tuple[Tokens, float]:
    """Tokens and CPU seconds of the engine."""
    sampling = Sampling(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    with BuiltinEngine(policy, max_running=BATCH_SIZE) as engine:
        started = time.process_time()
        asks = [prompts] if at_once else [[prompt] for prompt in prompts]
        answers = [answer for ask in asks for answer in engine.complete(ask, sampling=sampling)]
        seconds = time.process_time() - started
    return [answer.completions[0].token_ids for answer in answers], seconds


@torch.inference_mode()
def without_cache(policy: LanguagePolicy, prompts: Tokens) -> tuple[Tokens, float]:
    """Tokens and CPU seconds of reading everything again for every token."""
    written: Tokens = []
    started = time.process_time()
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        for _ in range(NUM_TOKENS):
            hidden = policy.model(tokens, torch.ones_like(tokens, dtype=torch.bool), SharedPrefix())
            tokens = torch.cat([tokens, policy.model.logits(hidden[:, -1]).argmax(-1, keepdim=True)], 1)
        written.append(tokens[0, len(prompt) :].tolist())
    return written, time.process_time() - started


def hugging_face(weights: Path, policy: LanguagePolicy, prompts: Tokens, batch_size: int) -> tuple[Tokens, float]:
    """Tokens and CPU seconds of Hugging Face transformers, in an environment of its own."""
    asked = {
        "weights": str(weights),
        "sizes": {**SIZES, "vocabulary_size": policy.tokenizer.vocabulary_size},
        "prompts": prompts,
        "num_tokens": NUM_TOKENS,
        "batch_size": batch_size,
    }
    command = [PEERS, BENCHMARKS / "peers" / "hf_generate.py"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return said["tokens"], said["cpu_seconds"]


def ways(policy: LanguagePolicy, weights: Path) -> dict[str, tuple[int, Callable[[Tokens], tuple[Tokens, float]]]]:
    """By name: how many prompts it gets, and how it answers them."""
    return {
        "built-in, all at once": (NUM_PROMPTS, lambda prompts: built_in(policy, prompts, at_once=True)),
        "built-in, one by one": (NUM_ALONE, lambda prompts: built_in(policy, prompts, at_once=False)),
        "without a cache, one by one": (NUM_ALONE, lambda prompts: without_cache(policy, prompts)),
        "transformers, in batches": (NUM_PROMPTS, lambda prompts: hugging_face(weights, policy, prompts, BATCH_SIZE)),
        "transformers, one by one": (NUM_ALONE, lambda prompts: hugging_face(weights, policy, prompts, 1)),
    }


def share_of_equal(first: Tokens, second: Tokens) -> float:
    """Of answers that are the same to the last token; two likeliest tokens may be as likely as rounding goes."""
    return sum(one == other for one, other in zip(first, second, strict=False)) / min(len(first), len(second))


def main() -> None:
    torch.set_num_threads(1)
    policy = LanguagePolicy.fresh(0, **SIZES)
    with torch.no_grad():
        policy.model.token_embedding.weight.mul_(20.0)  # so that it is not indifferent
    prompts = prompts_of(policy, seed=0)
    rounds: list[dict[str, float]] = []
    equal: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder))
        for _ in range(NUM_ROUNDS):
            speeds, first = {}, None
            for name, (count, answer) in ways(policy, Path(folder) / "policy.safetensors").items():
                tokens, seconds = answer(prompts[:count])
                first = first or tokens
                equal[name] = share_of_equal(first, tokens)
                speeds[name] = sum(map(len, tokens)) / seconds
                print(f"{name:28} {speeds[name]:10.0f} tokens per CPU second, {equal[name]:.0%} the same", flush=True)
            rounds.append(speeds)
    write_json(RESULTS, _results(rounds, equal))


def _results(rounds: list[dict[str, float]], equal: dict[str, float]) -> dict[str, Any]:
    base = "built-in, all at once"
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "policy": {**SIZES, "torch": torch.__version__, "threads": 1},
        "load": {"prompts": NUM_PROMPTS, "alone": NUM_ALONE, "tokens": NUM_TOKENS, "batch_size": BATCH_SIZE},
        "tokens_per_cpu_second": {name: [speeds[name] for speeds in rounds] for name in rounds[0]},
        "times_as_fast": {name: median(speeds[base] / speeds[name] for speeds in rounds) for name in rounds[0]},
        "share_of_equal_answers": equal,
    }


if __name__ == "__main__":
    sys.exit(main())

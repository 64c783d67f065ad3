"""The example trainer of the reference on a language policy of ours: its client, its batches and its training step.

Run as a script: the hub's URL, the engine's, the policy's folder, where the reference is installed, how many steps.
After each step the engine gets the new weights, a line of JSON says what was trained on, and a line of standard input
is waited for. Of the reference's package only `__init__` and what launches vLLM are left out.
"""

import importlib
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import torch
from torch import Tensor, nn

from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.policy import LanguagePolicy

NUM_SEQUENCES, MICRO_BATCH, MAX_TOKENS = 16, 4, 1_537


class HuggingFaceShape(nn.Module):
    """Our transformer with the call that the trainer makes: token ids in, `.logits` out."""

    def __init__(self, policy: LanguagePolicy) -> None:
        super().__init__()
        self.model = policy.model

    def forward(self, tokens: Tensor) -> SimpleNamespace:
        hidden = self.model(tokens, torch.ones_like(tokens, dtype=torch.bool), SharedPrefix())
        return SimpleNamespace(logits=self.model.logits(hidden))


def main(hub: str, engine: str, folder: Path, site_packages: str, num_steps: int) -> None:
    """Register, train, hand over weights."""
    api, data, training, configuration = _reference(site_packages)
    config = configuration.TrainingConfig(
        model_name="none",
        atropos_url=hub,
        batch_size=MICRO_BATCH,
        gradient_accumulation_steps=NUM_SEQUENCES // MICRO_BATCH,
        seq_len=MAX_TOKENS,
        training_steps=num_steps,
        lr=1e-4,
        device="cpu",
    )
    api.register_trainer(config)
    policy = LanguagePolicy.load(folder)
    model = HuggingFaceShape(policy)
    optimizer = torch.optim.AdamW(model.parameters())
    batches: list[Any] = []
    for step in range(num_steps):
        if not batches:
            batches, _ = data.get_data(config.batch_size, config.seq_len, hub)
        tokens, labels, advantages, temperatures, log_probs = batches.pop(0)
        training.run_training_step(
            model,
            optimizer,
            tokens,
            labels,
            advantages,
            temperatures,
            config,
            step,
            inference_logprob_batches=log_probs,
        )
        policy.save(folder / str(step + 1))
        _update(engine, folder / str(step + 1), step + 1)
        drift = training._logprob_alignment_stats["alignment/diff_max"]
        trained = [row for rows in tokens for row in rows.tolist()]
        print(json.dumps({"step": step + 1, "drift": drift, "sequences": trained}), flush=True)
        sys.stdin.readline()


def _reference(site_packages: str) -> list[types.ModuleType]:
    """Modules of the example trainer, without its `__init__`."""
    sys.path.append(site_packages)
    package = types.ModuleType("example_trainer")
    package.__path__ = [f"{site_packages}/example_trainer"]
    sys.modules["example_trainer"] = package
    return [importlib.import_module(f"example_trainer.{name}") for name in ("api", "data", "training", "config")]


def _update(engine: str, folder: Path, version: int) -> None:
    body = {"model_path": str(folder), "weight_version": str(version)}
    answer = httpx.post(f"{engine}/update_weights_from_disk", json=body, trust_env=False, timeout=60)
    assert answer.json()["success"], answer.text


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))

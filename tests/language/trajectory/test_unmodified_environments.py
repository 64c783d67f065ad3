"""The reference's environment for reasoning-gym, twice, and its example trainer, all unmodified, run end to end.

One environment asks our engine in vLLM's shape for a curriculum of tasks, the other in SGLang's for tasks of random
complexity. The example trainer's own code registers, takes batches and steps; the engine gets new weights each time.
The hub is killed on the way. The environments' own records of what they posted are compared with what was trained on.
"""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch.nn import functional

from loomrl.language.inference.hf_tokenizer import write_tokenizer
from loomrl.language.inference.process import EngineProcess
from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import EOS, PAD
from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import ENVIRONMENT, PYTHON, kill_child, need_environments, site_packages

TRAINER = Path(__file__).parents[2] / "support" / "atropos_trainer.py"
NUM_STEPS, MAX_TOKENS, PROMPT_TOKENS, PATIENCE_SECONDS = 4, 1_536, 24, 600
SETTINGS = {
    "vllm": {"group_size": 4, "complexity_mode": "curriculum"},
    "sglang": {"group_size": 2, "complexity_mode": "random"},
}
Group = tuple[tuple[int, ...], ...]


@pytest.fixture
def policy_folder(tmp_path: Path) -> Path:
    """A policy that has seen what answers look like, and its tokenizer."""
    need_environments()
    policy = LanguagePolicy.fresh(0, width=32, num_layers=1, num_heads=1, max_tokens=MAX_TOKENS + 64)
    model, generator = policy.model, torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.position_embedding.weight.zero_()  # so that what is learnt behind a short prompt holds behind a long one
    model.position_embedding.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    answers = torch.tensor([policy.tokenizer.answer(f"<answer>{digit}</answer>") for digit in range(10)])
    for _ in range(100):
        prompts = torch.randint(32, 127, (len(answers), PROMPT_TOKENS), generator=generator)
        rows = torch.cat([prompts, answers], 1)
        hidden = model(rows[:, :-1], torch.ones_like(rows[:, :-1], dtype=torch.bool), SharedPrefix())
        logits = model.logits(hidden[:, PROMPT_TOKENS - 1 :])
        loss = functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.save(tmp_path / "policy")
    write_tokenizer(policy.tokenizer, tmp_path / "tokenizer", MAX_TOKENS)
    return tmp_path / "policy"


def test_two_environments_and_the_example_trainer_run_end_to_end(policy_folder: Path, tmp_path: Path) -> None:
    with (
        HubProcess(keep_up=True, database_url=f"sqlite:///{tmp_path / 'hub.db'}") as hub,
        EngineProcess(policy=policy_folder) as engine,
        _trainer(hub, engine, policy_folder) as trainer,
        _environment("vllm", hub, engine, tmp_path) as first,
        _environment("sglang", hub, engine, tmp_path) as second,
    ):
        steps = list(_steps(trainer, hub))
        assert trainer.wait() == 0
        codes = [process.wait(timeout=PATIENCE_SECONDS) for process in (first, second)]
        version = httpx.get(f"{engine.url}/weight_info", trust_env=False).json()
    assert codes == [0, 0], [(tmp_path / f"{shape}.log").read_text()[-2_000:] for shape in SETTINGS]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert version == {"weight_version": "4"}
    assert steps[0]["drift"] < 1e-3  # the engine's log-probabilities are those of the trainer's model
    posted = Counter(group for shape in SETTINGS for group in _posted(tmp_path / f"{shape}.jsonl"))
    for step in steps:
        groups = _groups(step["sequences"], posted)
        assert {len(group) for group in groups} == {2, 4}  # each environment has its least share of every batch
        posted.subtract(groups)
    assert min(posted.values()) >= 0  # none was trained on twice


def _steps(trainer: "subprocess.Popen[str]", hub: HubProcess) -> Iterator[dict[str, Any]]:
    """What the trainer says of each step; it waits for a line before the next. After the first the hub is killed."""
    assert trainer.stdout is not None
    assert trainer.stdin is not None
    with httpx.Client(base_url=hub.url, trust_env=False, timeout=60) as client:
        for line in trainer.stdout:
            if not line.startswith("{"):
                continue
            step = json.loads(line)
            if step["step"] == 1:
                queued = client.get("/status").json()["queue_size"]
                kill_child(hub)
                status = httpx.get(f"{hub.url}/status", trust_env=False, timeout=60).json()
                assert (status["current_step"] >= 1, status["queue_size"] >= queued) == (True, True)
            yield step
            trainer.stdin.write("\n")
            trainer.stdin.flush()


@contextmanager
def _trainer(hub: HubProcess, engine: EngineProcess, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, TRAINER, hub.url, engine.url, folder, site_packages(), str(NUM_STEPS)]
    with _ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        yield process


@contextmanager
def _environment(
    shape: str, hub: HubProcess, engine: EngineProcess, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    options = {
        "env.rollout_server_url": hub.url,
        "env.tokenizer_name": folder / "tokenizer",
        "env.max_token_length": MAX_TOKENS,
        "env.total_steps": NUM_STEPS,
        "env.use_wandb": False,
        "env.wandb_name": shape,
        "env.min_batch_allocation": 0.25,
        "env.ensure_scores_are_not_same": False,  # so small a policy mostly fails as a whole
        "env.data_path_to_save_groups": folder / f"{shape}.jsonl",
        "openai.server_type": shape,
        "openai.base_url": f"{engine.url}/v1",
        "openai.model_name": "loomrl",
        "openai.tokenizer_name": folder / "tokenizer",
        **{f"env.{name}": value for name, value in SETTINGS[shape].items()},
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONWARNINGS": "ignore"}
    with (
        (folder / f"{shape}.log").open("wb") as log,
        _ended(
            subprocess.Popen(
                [PYTHON, ENVIRONMENT, "serve", *arguments], cwd=folder, env=settings, stdout=log, stderr=log
            )
        ) as process,
    ):
        yield process


@contextmanager
def _ended(process: "subprocess.Popen[Any]") -> Iterator["subprocess.Popen[Any]"]:
    """A process that ends with the block, or when patience does: whoever reads from it waits no longer."""
    with process:
        watch = threading.Timer(PATIENCE_SECONDS, process.kill)
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()


def _posted(path: Path) -> Iterator[Group]:
    """The groups that an environment wrote down before it posted them."""
    for line in path.read_text().splitlines():
        yield tuple(_content(row) for row in json.loads(line)["tokens"])


def _content(row: list[int]) -> tuple[int, ...]:
    """A sequence without its end and what pads it."""
    while row and row[-1] in (PAD, EOS):
        row = row[:-1]
    return tuple(row)


def _groups(rows: list[list[int]], posted: Counter[Group]) -> list[Group]:
    """The posted groups that a batch is made of, in its order. The first answers of a group of four may be those of
    another one of two: whatever leaves the rest whole."""
    ways = _divided([_content(row) for row in rows], posted)
    return next(groups for groups in ways if not Counter(groups) - posted)


def _divided(contents: list[tuple[int, ...]], posted: Counter[Group]) -> Iterator[list[Group]]:
    if not contents:
        yield []
    for size in (4, 2):
        if len(contents) >= size and (group := tuple(contents[:size])) in posted:
            yield from ([group, *others] for others in _divided(contents[size:], posted))

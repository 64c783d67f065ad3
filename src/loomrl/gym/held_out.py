"""Which tasks are held out from training. It follows from what they ask, so training never meets what evaluation asks,
whoever draws; nor does validation, which picks the policy, where an environment draws by seeds."""

import hashlib
from collections.abc import Collection
from typing import Literal

import numpy as np

from loomrl.environment.seeds import FIRST_TRAINING_SEED, VALIDATION_SEEDS
from loomrl.errors import ConfigError
from loomrl.gym.tasks import Domain, Task
from loomrl.system.files import canonical_json

Part = Literal["training", "validation", "judging"]
TRAINING: tuple[Part, ...] = ("training",)
HELD_OUT: tuple[Part, ...] = ("validation", "judging")
VALIDATION_SHARE = 0.25  # of the tasks that are held out
_TRIES = 1_000


def identity(task: Task) -> bytes:
    """SHA-256, 32 bytes, of what is asked and what is right: tasks that differ in nothing else, such as wrong answers,
    are one."""
    picture = b"" if task.picture is None else task.picture.tobytes()
    return hashlib.sha256(canonical_json([task.domain, task.kind, task.prompt, task.right]) + picture).digest()


def part_of(task: Task, share: float) -> Part:
    """Whose task it is, "training", "validation" or "judging", where `share` of all tasks, 0 to 1, is held out."""
    held_out, validation = (int.from_bytes(identity(task)[start : start + 4]) for start in (0, 4))
    if held_out >= share * 2**32:
        return "training"
    return "validation" if validation < VALIDATION_SHARE * 2**32 else "judging"


def part_for(seed: int) -> Part:
    """Whose tasks an environment draws after a reset with a seed: "training", "validation" or "judging"."""
    if seed >= FIRST_TRAINING_SEED:
        return "training"
    return "validation" if seed in VALIDATION_SEEDS else "judging"


def is_held_out(task: Task, share: float) -> bool:
    """Whether a task is one of the share that is never trained on."""
    return part_of(task, share) != "training"


def draw(
    domain: Domain, level: int, kinds: Collection[str], rng: np.random.Generator, share: float, parts: Collection[Part]
) -> Task:
    """A task of one of the parts, where `share` of all tasks is held out.

    Raises:
        ConfigError: when the level has none, as far as 1,000 tasks show, or for a level or kind there is not.
        EnvironmentFault: where the code that makes a task breaks.
    """
    for _ in range(_TRIES):
        task = domain.generate(rng, level, kinds)
        if part_of(task, share) in parts:
            return task
    raise ConfigError(
        f"{domain.name}: of {_TRIES} tasks of level {level} none is for {' or '.join(parts)}; change held_out_share, "
        f"which is {share}, or name a level with more tasks"
    )

"""Which tasks are held out from training. It follows from what they ask, so training never meets what evaluation asks,
whoever draws."""

import hashlib
from collections.abc import Collection

import numpy as np

from loomrl.errors import ConfigError
from loomrl.files import canonical_json
from loomrl.gym.tasks import Domain, Task

_TRIES = 1_000


def identity(task: Task) -> bytes:
    """What is asked and what is right: how else a task was made, such as with which wrong answers, makes no other."""
    picture = b"" if task.picture is None else task.picture.tobytes()
    return hashlib.sha256(canonical_json([task.domain, task.kind, task.prompt, task.right]) + picture).digest()


def is_held_out(task: Task, share: float) -> bool:
    """Whether a task is one of the share that is never trained on."""
    return int.from_bytes(identity(task)[:4]) < share * 2**32


def draw(
    domain: Domain, level: int, kinds: Collection[str], rng: np.random.Generator, share: float, held_out: bool
) -> Task:
    """A task of those that are held out, or of the others.

    Raises:
        ConfigError: when the level has none.
    """
    for _ in range(_TRIES):
        task = domain.generate(rng, level, kinds)
        if is_held_out(task, share) == held_out:
            return task
    which = "held out" if held_out else "left to train on"
    raise ConfigError(f"{domain.name}: of {_TRIES} tasks of level {level} none is {which}; held_out_share is {share}")

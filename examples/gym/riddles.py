"""A domain of one's own: say a word backwards."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Draft, Kind, Rewards, Task

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def reversal(rng: np.random.Generator, level: int) -> Draft:
    """A word of random letters, the longer the higher the level."""
    word = "".join(LETTERS[index] for index in rng.permutation(len(LETTERS))[: 3 + level])
    right = word[::-1]
    wrong = [word, right[1:] + right[0], right[:-2] + right[-1] + right[-2]]
    return Draft(f"Say it backwards: {word}", right, wrong)


class Riddles(Domain):
    """Words said backwards."""

    name = "riddles"
    weights: ClassVar[Mapping[str, float]] = {"solved": 1.0}
    kinds: ClassVar[Mapping[str, Kind]] = {"reversal": Kind(0, reversal)}
    prompt_bytes, answer_bytes, choice_bytes = 64, 32, 32

    def verify(self, task: Task, answer: str) -> Rewards:
        """All or nothing."""
        return {"solved": float(answer.strip() == task.right)}


DOMAIN = Riddles()


class Environment(DomainEnvironment):
    """The Gymnasium environment over it."""

    domain = DOMAIN

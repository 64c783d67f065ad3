"""Tasks for a learner: drawn by a curriculum, scored by their domains, and some of them held out.

Which tasks those are is for `loomrl.gym.held_out`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from loomrl.errors import ConfigError
from loomrl.gym.curriculum import Curriculum
from loomrl.gym.domains import get_domain
from loomrl.gym.held_out import HELD_OUT, TRAINING, draw, identity
from loomrl.gym.tasks import Score, Task


class TaskStream:
    """An endless iterator of (domain, task), and the call that scores an answer.

    Args:
        curriculum: what draws domains and levels and learns from the scores.
        seed: of all that is drawn.
        kinds: for a domain, the kinds of its tasks; all of them where it is not named.
        held_out_share: the share of all tasks that is never drawn.

    Raises:
        ConfigError: from the iterator, for a domain or kind there is not, or a level with held-out tasks alone.
    """

    def __init__(
        self,
        curriculum: Curriculum,
        seed: int,
        kinds: Mapping[str, Collection[str]] | None = None,
        held_out_share: float = 0.1,
    ) -> None:
        self.curriculum = curriculum
        self._rng = np.random.default_rng(seed)
        self._kinds, self._share = dict(kinds or {}), held_out_share

    def __iter__(self) -> Iterator[tuple[str, Task]]:
        return self

    def __next__(self) -> tuple[str, Task]:
        name, level = self.curriculum.draw(self._rng)
        return name, draw(get_domain(name), level, self._kinds.get(name, ()), self._rng, self._share, TRAINING)

    def score(self, task: Task, answer: str) -> Score:
        """The score of an answer to a task, which is also reported to the curriculum.

        Raises:
            ServiceError: where there is no sandbox for the program of an answer; nothing is reported then.
        """
        scored = get_domain(task.domain).score(task, answer)
        self.curriculum.record(task.domain, scored.solved)
        return scored

    def state_dict(self) -> dict[str, Any]:
        """All that resuming the stream needs, as JSON values."""
        return {"rng": self._rng.bit_generator.state, "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the tasks that follow are the same to the byte.

        Raises:
            ArtifactError: when the curriculum's state is of other domains, or none. The curriculum is then as it was,
                and the generator is not.
        """
        self._rng.bit_generator.state = state["rng"]
        self.curriculum.load_state_dict(state["curriculum"])


def held_out_tasks(
    domain: str, level: int, count: int, seed: int, kinds: Collection[str] = (), held_out_share: float = 0.1
) -> list[Task]:
    """Different tasks of those a `TaskStream` with the same share never draws.

    Raises:
        ConfigError: when the level has not that many.
    """
    rng = np.random.default_rng(seed)
    found: dict[bytes, Task] = {}
    for _ in range(20 * count + 200):
        task = draw(get_domain(domain), level, kinds, rng, held_out_share, HELD_OUT)
        found.setdefault(identity(task), task)
        if len(found) == count:
            return list(found.values())
    raise ConfigError(
        f"{domain}: level {level} has fewer than {count} held-out tasks; ask for fewer, or raise held_out_share"
    )

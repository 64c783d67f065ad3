"""Code: implementing algorithms, debugging and review of Python, run in a sandbox.

Rewards: `working`, `efficient` and `readable`. A review's answer is a line's number, and earns all or nothing.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from loomrl.gym.domains.code import algorithms, drafts
from loomrl.gym.domains.code.judging import Cases, judge
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task

_LINE = re.compile(r"\s*(?:line )?([0-9]{1,3})\.?\s*", re.ASCII | re.IGNORECASE)


class Code(Domain):
    """Tasks about Python programs: writing, mending and reviewing them."""

    name = "code"
    weights: ClassVar[Mapping[str, float]] = {"working": 0.6, "efficient": 0.2, "readable": 0.2}
    kinds: ClassVar[Mapping[str, Kind]] = drafts.KINDS
    prompt_bytes = 2_048
    answer_bytes = 2_048
    choice_bytes = 768

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards of an answer, 0 to 1 by component, found by running the program or comparing the line.

        The task's own answers are known and not run again.

        Raises:
            ServiceError: where there is no sandbox to run it in.
        """
        if answer == task.right:
            return self.everything()
        if answer in task.wrong:
            return self.nothing()
        if task.kind == "review":
            found = _LINE.fullmatch(answer)
            return self.everything() if found and int(found.group(1)) == int(task.right) else self.nothing()
        algorithm = algorithms.draw(np.random.default_rng(task.facts["algorithm"]), task.facts["level"])
        return judge(answer, algorithm, Cases(algorithm, task.facts["tests"])) or self.nothing()


DOMAIN = Code()


class CodeEnvironment(DomainEnvironment):
    """The environment `loomrl/Code-v0`: episodes of the code domain."""

    domain = DOMAIN


Environment = CodeEnvironment  # as all plug-ins of this kind name it

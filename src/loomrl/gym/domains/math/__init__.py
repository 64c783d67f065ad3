"""Mathematics: algebra, calculus, geometry and statistics, made by sympy, reasoning-gym and by hand.

Rewards: `correctness` of the value, `logical_progression` of the equations that lead to it, `final_accuracy` of its
form. All of it comes in one message: working, an equation a line, and at last the answer.
"""

from collections.abc import Mapping
from typing import ClassVar

from loomrl.gym.domains.math import algebra, calculus, geometry, reasoning, statistics
from loomrl.gym.domains.math.answers import judge
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task


class Math(Domain):
    """Tasks whose answer is a number or a formula."""

    name = "math"
    weights: ClassVar[Mapping[str, float]] = {"correctness": 0.6, "logical_progression": 0.2, "final_accuracy": 0.2}
    kinds: ClassVar[Mapping[str, Kind]] = {
        **algebra.KINDS,
        **calculus.KINDS,
        **geometry.KINDS,
        **statistics.KINDS,
        **reasoning.KINDS,
    }
    choice_bytes = 128

    def verify(self, task: Task, answer: str) -> Rewards:
        """Judge the last line, and the equations above it."""
        return judge(task, answer) or self.nothing()


DOMAIN = Math()


class Environment(DomainEnvironment):
    """`loomrl/Math-v0`."""

    domain = DOMAIN

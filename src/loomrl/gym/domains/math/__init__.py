"""Mathematics: algebra, calculus, geometry and statistics, made by sympy, reasoning-gym and by hand.

Rewards: `correctness` of the value, `logical_progression` of the equations that lead to it, `final_accuracy` of its
form. All of it comes in one message: working, an equation a line, and at last the answer. A bare answer shows no
working and earns no `logical_progression`; tasks whose prompt does not ask for working do not count it.
"""

from collections.abc import Mapping
from typing import ClassVar

from loomrl.gym.domains.math import algebra, calculus, geometry, reasoning, statistics
from loomrl.gym.domains.math.answers import judge
from loomrl.gym.domains.math.drafts import asks_for_working
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task


class Math(Domain):
    """Tasks whose answer is a number or a formula."""

    name = "math"
    weights: ClassVar[Mapping[str, float]] = {"correctness": 0.6, "logical_progression": 0.2, "final_accuracy": 0.2}
    optional_components = ("logical_progression",)
    kinds: ClassVar[Mapping[str, Kind]] = {
        **algebra.KINDS,
        **calculus.KINDS,
        **geometry.KINDS,
        **statistics.KINDS,
        **reasoning.KINDS,
    }
    choice_bytes = 128

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards of an answer: its last line is judged, and the equations above it."""
        return judge(task, answer) or self.nothing()

    def weights_of(self, task: Task) -> Mapping[str, float]:
        """The weights of components by name, without `logical_progression` where a task does not ask for working."""
        if asks_for_working(task):
            return self.weights
        return {name: weight for name, weight in self.weights.items() if name not in self.optional_components}


DOMAIN = Math()


class MathEnvironment(DomainEnvironment):
    """The environment `loomrl/Math-v0`: episodes of the mathematics domain."""

    domain = DOMAIN


Environment = MathEnvironment  # as all plug-ins of this kind name it

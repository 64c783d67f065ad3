"""Pictures and text: captions, questions, and reasoning over both.

Rewards: `accuracy`, `detail` and `coherence`. Only a caption can earn a part: without places, or out of order.
"""

from collections.abc import Mapping
from typing import ClassVar

from loomrl.gym.domains.multimodal import drafts
from loomrl.gym.domains.multimodal.captions import judge
from loomrl.gym.domains.multimodal.pictures import SHAPE, Thing
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task


class Multimodal(Domain):
    """Tasks about the shapes in a picture: captions, questions and reasoning."""

    name = "multimodal"
    weights: ClassVar[Mapping[str, float]] = {"accuracy": 0.6, "detail": 0.2, "coherence": 0.2}
    kinds: ClassVar[Mapping[str, Kind]] = drafts.KINDS
    prompt_bytes = 256
    choice_bytes = 256
    picture_shape = SHAPE

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards of an answer, by comparison with the shapes that were drawn."""
        if task.kind == "caption":
            things = [Thing(*thing) for thing in task.facts["things"]]
            return judge(things, answer) or self.nothing()
        return self.everything() if answer.strip().rstrip(".").lower() == task.right else self.nothing()


DOMAIN = Multimodal()


class MultimodalEnvironment(DomainEnvironment):
    """The environment `loomrl/Multimodal-v0`: episodes about pictures and text."""

    domain = DOMAIN


Environment = MultimodalEnvironment  # as all plug-ins of this kind name it

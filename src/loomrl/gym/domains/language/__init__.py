"""Language: dialogue, translation, summarisation and question answering with known answers.

Rewards: `relevance` by chrF (sacrebleu), `coherence` by ROUGE-L (rouge-score), `helpfulness` where all is said that was
asked for. A text that leaves something out, adds something wrong or says too much earns nothing.
"""

from collections.abc import Mapping
from typing import ClassVar

from loomrl.gym.domains.language import stories, translation
from loomrl.gym.domains.language.judging import judge
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task


class Language(Domain):
    """Tasks about texts: translations, summaries, questions and dialogues."""

    name = "language"
    weights: ClassVar[Mapping[str, float]] = {"relevance": 0.4, "coherence": 0.2, "helpfulness": 0.4}
    kinds: ClassVar[Mapping[str, Kind]] = {**stories.KINDS, **translation.KINDS}
    choice_bytes = 128

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards of a text, 0 to 1 by component: by what it must say, and by metrics; 0 if it does not say it."""
        return judge(task, answer) or self.nothing()


DOMAIN = Language()


class LanguageEnvironment(DomainEnvironment):
    """The environment `loomrl/Language-v0`: episodes of the language domain."""

    domain = DOMAIN


Environment = LanguageEnvironment  # as all plug-ins of this kind name it

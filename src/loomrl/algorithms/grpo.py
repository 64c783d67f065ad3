"""GRPO for language policies (Shao et al., arXiv 2402.03300): an answer is as good as it is beside others to its task.

The loss is `loomrl.language.grpo`; tasks and the warm start are `answering` and `text_learning`, the policy that goes
through the stages `text_policy`. `docs/algorithms/grpo.md` lists the details, the metrics and what was measured.
"""

from loomrl.algorithms.text_learning import TextConfig, builder
from loomrl.algorithms.text_policy import TextPolicy
from loomrl.language.grpo import GRPO

NAME = "grpo"
Policy = TextPolicy


class Config(TextConfig):
    """GRPO's parameters; the defaults learn to add numbers of two digits."""


build = builder(NAME, GRPO)

"""GRPO for language policies (Shao et al., arXiv 2402.03300): an answer is as good as it is beside others to its task.

The loss is `loomrl.language.learning.grpo`; tasks and the warm start are `answering` and `learning` beside this module,
the policy that goes through the stages is in `policy`. `docs/algorithms/grpo.md` lists the details, the metrics and
what was measured.
"""

from loomrl.language.algorithms.learning import TextConfig, builder
from loomrl.language.algorithms.policy import TextPolicy
from loomrl.language.learning.grpo import GRPO

NAME = "grpo"
Policy = TextPolicy


class GRPOConfig(TextConfig):
    """GRPO's parameters, those of `TextConfig`; the defaults learn to add numbers of two digits."""


Config = GRPOConfig  # as all plug-ins of this kind name it


build = builder(NAME, GRPO)

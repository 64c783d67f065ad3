"""GRPO for language policies (Shao et al., arXiv 2402.03300): an answer is as good as it is beside others to its task.

The loss is `loomrl.language.grpo`; tasks and the warm start are `answering` and `text_learning`, the policy that goes
through the stages `text_policy`. `docs/algorithms/grpo.md` lists the details, the metrics and what was measured.
"""

from typing import Any

import gymnasium

from loomrl.algorithms.text_learning import TextConfig, TextLearning, build_with
from loomrl.algorithms.text_policy import TextPolicy
from loomrl.language.grpo import GRPO

NAME = "grpo"
Policy = TextPolicy


class Config(TextConfig):
    """GRPO's parameters; the defaults learn to add numbers of two digits."""


def build(
    config: Config,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,  # noqa: ARG001 - nothing here depends on how long training is
) -> TextLearning:
    """Make the algorithm; raises `ConfigError` for spaces that are no texts."""
    return build_with(GRPO, NAME, config, (observation_space, action_space), seed, value_head=False)

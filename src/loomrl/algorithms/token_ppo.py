"""PPO for language policies (Schulman et al., arXiv 1707.06347): a value head says what each token of an answer earned.

The losses are `loomrl.language.ppo`; all else is shared with GRPO, and `docs/algorithms/grpo.md` says what.
"""

from pydantic import Field

from loomrl.algorithms.text_learning import TextConfig, builder
from loomrl.algorithms.text_policy import TextPolicy
from loomrl.language.ppo import PPO, PPOConfig

NAME = "token_ppo"
Policy = TextPolicy


class Config(TextConfig, PPOConfig):
    """Token PPO's parameters. It compares no answers, so one to each task would do."""

    num_samples: int = Field(default=8, ge=1)


build = builder(NAME, PPO)

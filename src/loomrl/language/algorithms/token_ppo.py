"""PPO for language policies (Schulman et al., arXiv 1707.06347): a value head says what each token of an answer earned.

The losses are `loomrl.language.learning.ppo`; all else is shared with GRPO, and `docs/algorithms/grpo.md` says what.
"""

from pydantic import Field

from loomrl.language.algorithms.learning import TextConfig, builder
from loomrl.language.algorithms.policy import TextPolicy
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig

NAME = "token_ppo"
Policy = TextPolicy


class TokenPPOConfig(TextConfig, LanguagePPOConfig):
    """Token PPO's parameters, those of `TextConfig` and `LanguagePPOConfig`. It compares no answers, so one to each
    task would do."""

    num_samples: int = Field(default=8, ge=1)


Config = TokenPPOConfig  # as all plug-ins of this kind name it


build = builder(NAME, LanguagePPO)

"""PPO for language policies (Schulman et al., arXiv 1707.06347): a value head says what each token of an answer earned.

The losses are `loomrl.language.ppo`; all else is shared with GRPO, and `docs/algorithms/grpo.md` says what.
"""

from typing import Any

import gymnasium
from pydantic import Field

from loomrl.algorithms.text_learning import TextConfig, TextLearning, build_with
from loomrl.algorithms.text_policy import TextPolicy
from loomrl.language.ppo import PPO, PPOConfig

NAME = "token_ppo"
Policy = TextPolicy


class Config(TextConfig, PPOConfig):
    """Token PPO's parameters. It compares no answers, so one to each task would do."""

    num_samples: int = Field(default=8, ge=1)


def build(
    config: Config,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,  # noqa: ARG001 - nothing here depends on how long training is
) -> TextLearning:
    """Make the algorithm; raises `ConfigError` for spaces that are no texts."""
    return build_with(PPO, NAME, config, (observation_space, action_space), seed, value_head=True)

"""PPO on the episodes of a gym, from the parameters of `PPOConfig`."""

import math
from typing import Any

from loomrl.errors import ConfigError
from loomrl.language.learning import ppo
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.trainer import PPOConfig

_LEARNING = set(ppo.LanguagePPOConfig.model_fields)
_LOOP = {"total_episodes", "batch_size", "seed", "log_interval", "learning_rate_schedule"}
# All tokens of an episode share its outcome: before the value head knows anything, less would make the first tokens of
# long messages look bad beside those of short ones. What the warm start taught of forms is held fast, for once a domain
# never succeeds nothing brings it back. Batches are small: more passes would learn their noise. Episodes count
# alike: a dialogue with a tool has twenty times a sum's tokens, beside which sums would hardly be learnt.
_DEFAULTS: dict[str, Any] = {"gae_lambda": 1.0, "kl_coef": 0.05, "n_epochs": 2, "mean_over": "samples"}


def make_learner(config: PPOConfig, policy: LanguagePolicy, gym_config: GymTrainingConfig) -> ppo.LanguagePPO:
    """A learner of `policy` with the parameters that `config` gives; for others it has defaults of the gym's, else
    those of PPO on tokens. It is held to the policy as it is now.

    Raises:
        ConfigError: for a parameter that means nothing here, and a `batch_size` that is no multiple of `group_size`.
    """
    if useless := sorted(config.model_dump(exclude_defaults=True).keys() - _LEARNING - _LOOP):
        allowed = ", ".join(sorted(set(PPOConfig.model_fields) & (_LEARNING | _LOOP)))
        raise ConfigError(f"PPOConfig.{useless[0]} means nothing to a language policy in the gym; it takes: {allowed}")
    if config.batch_size % gym_config.group_size:
        raise ConfigError(
            f"PPOConfig.batch_size {config.batch_size} is no multiple of GymTrainingConfig.group_size "
            f"{gym_config.group_size}; change one of them"
        )
    given = config.model_dump(include=config.model_fields_set & _LEARNING)
    parameters = {**_DEFAULTS, "max_staleness": gym_config.max_staleness, **_schedule(config), **given}
    return ppo.LanguagePPO(ppo.LanguagePPOConfig(**parameters), policy)


def _schedule(config: PPOConfig) -> dict[str, Any]:
    """A learning rate that falls to 0 at `total_episodes`, where they are known: batches are small, and their noise
    would stay in the weights."""
    is_asked_for = "learning_rate_schedule" in config.model_fields_set
    kind, total_episodes = config.learning_rate_schedule, config.total_episodes
    if is_asked_for and (kind == "adaptive" or (kind == "linear" and total_episodes is None)):
        raise ConfigError(
            "PPOConfig.learning_rate_schedule: in the gym it is constant, or linear with total_episodes as its end"
        )
    if kind == "constant" or total_episodes is None:
        return {}
    return {"total_updates": math.ceil(total_episodes / config.batch_size)}

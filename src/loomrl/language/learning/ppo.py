"""PPO (Schulman et al., arXiv 1707.06347) on tokens: a value head says what each of them was worth.

An answer's score comes with its last token; generalised advantages carry it back.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from loomrl.algorithms.ppo.learner import squared_value_errors
from loomrl.errors import ConfigError
from loomrl.language.learning.batch import TokenBatch, token_values
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.learner import BatchEstimate, LanguageLearner, LearnerConfig, given_advantages
from loomrl.language.learning.losses import mean_of_samples, mean_of_tokens, standardized, token_advantages
from loomrl.language.policies.policy import LanguagePolicy


class LanguagePPOConfig(LearnerConfig):
    """The settings of PPO on tokens: those of `LearnerConfig`, the discounts and the value loss.

    Attributes:
        gamma: discount from one learnt token to the next; with `gae_lambda` that of generalised advantages.
        value_loss_coef: what the value head's squared errors count in the loss.
        value_clip_epsilon: how far a value may move from that before the update; None: values are not clipped.
        mean_over: what counts alike in a loss: all tokens, or all samples however long, for tasks whose answers differ
            in length.
    """

    gamma: float = Field(default=1.0, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    value_loss_coef: float = Field(default=0.5, ge=0)
    value_clip_epsilon: float | None = Field(default=None, gt=0)
    mean_over: Literal["tokens", "samples"] = "tokens"


class LanguagePPO(LanguageLearner):
    """A `LanguageLearner` by PPO: learns from how much better than its value head expected an answer went on after each
    token.

    Raises:
        ConfigError: where the policy has no value head.
    """

    config: LanguagePPOConfig
    needs_values = True

    def __init__(
        self, config: LanguagePPOConfig, policy: LanguagePolicy, reference: LanguagePolicy | None = None
    ) -> None:
        if policy.model.value_head is None:
            raise ConfigError("PPO needs a value head; make the model with value_head: true, or use GRPO")
        super().__init__(config, policy, reference)

    def _estimate(
        self, batch: TokenBatch, groups: Sequence[TokenGroup], states: Tensor, log_prob: Tensor
    ) -> BatchEstimate:
        value = token_values(self.policy.model, batch, states)
        score = torch.tensor([score for group in groups for score in group.scores])
        advantage = token_advantages(score, value, batch.loss_mask, self.config.gamma, self.config.gae_lambda)
        return BatchEstimate(
            log_prob=log_prob,
            weight=self._weight(batch, groups, log_prob),
            advantage=given_advantages(batch, groups, _normalized(advantage, batch.loss_mask)),
            reference_log_prob=self._reference_log_prob(batch),
            value=value,
            target=advantage + value,
        )

    def _teaches(self, group: TokenGroup) -> bool:  # noqa: ARG002 - every score teaches the value head
        return True

    def _mean(self, per_token: Tensor, loss_mask: Tensor) -> Tensor:
        return (mean_of_samples if self.config.mean_over == "samples" else mean_of_tokens)(per_token, loss_mask)

    def _more_losses(self, batch: TokenBatch, estimate: BatchEstimate, states: Tensor) -> dict[str, Tensor]:
        assert estimate.target is not None
        value = token_values(self.policy.model, batch, states)
        errors = squared_value_errors(value, estimate.target, estimate.value, self.config.value_clip_epsilon)
        return {"value_loss": self.config.value_loss_coef * self._mean(errors, batch.loss_mask)}


def _normalized(advantage: Tensor, loss_mask: Tensor) -> Tensor:
    """To mean 0 and deviation 1 over the learnt tokens, 0 elsewhere."""
    return torch.zeros_like(advantage).masked_scatter(loss_mask, standardized(advantage[loss_mask], 1e-8))

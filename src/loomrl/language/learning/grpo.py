"""GRPO (Shao et al., arXiv 2402.03300, equation 3): a sample is as good as it is beside the others of its group.

Deviations: the divergence from the reference costs nothing by default, and groups whose samples are all equally good,
which then have no gradient, are not computed (their samples count in the mean all the same).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from loomrl.language.learning.batch import TokenBatch
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.learner import BatchEstimate, LanguageLearner, LearnerConfig, given_advantages
from loomrl.language.learning.losses import group_advantages, mean_of_samples


class GRPO(LanguageLearner):
    """A `LanguageLearner` by GRPO: learns from how the scores of a group's samples compare, without a value head. A
    group whose samples have equal scores teaches nothing, unless it has advantages of its own."""

    config: LearnerConfig

    def _estimate(
        self,
        batch: TokenBatch,
        groups: Sequence[TokenGroup],
        states: Tensor,  # noqa: ARG002 - GRPO has no values
        log_prob: Tensor,
    ) -> BatchEstimate:
        by_sample = torch.cat([group_advantages(torch.tensor(group.scores)) for group in groups])
        return BatchEstimate(
            log_prob=log_prob,
            weight=self._weight(batch, groups, log_prob),
            advantage=given_advantages(batch, groups, by_sample[:, None].expand_as(batch.loss_mask)),
            reference_log_prob=self._reference_log_prob(batch),
        )

    def _teaches(self, group: TokenGroup) -> bool:
        return bool(self.config.kl_coef) or group.advantages is not None or len(set(group.scores)) > 1

    def _mean(self, per_token: Tensor, loss_mask: Tensor) -> Tensor:
        return mean_of_samples(per_token, loss_mask)

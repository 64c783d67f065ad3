"""What learning from token trajectories shares, whichever algorithm: `GRPO` and `PPO` say what a token was worth.

An update takes groups as they are, from this process or from a hub, and goes over all of them `n_epochs` times. Tokens
that an older policy drew are weighted by truncated importance, and groups that are too old are left out.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from loomrl.algorithms.base import State, below
from loomrl.algorithms.flat import FlatAdam, FlatParameters
from loomrl.errors import LoomRLError
from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.losses import clipped_surrogate, importance_weights, reference_divergence
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.system.schema import Section


class LearnerConfig(Section):
    """The settings that GRPO and PPO on tokens share. An update is one call of `LanguageLearner.update`.

    Attributes:
        learning_rate: at its highest.
        warmup_updates: over which it rises to that, for Adam knows little at first.
        total_updates: over which it falls to 0, linearly; None: it stays.
        n_epochs: gradient steps of an update, each on all of its tokens.
        clip_epsilon: how far a ratio of probabilities may be from 1 before it is clipped.
        max_grad_norm: longer gradients are scaled down to it (L2 norm).
        kl_coef: what the divergence from the reference policy costs.
        max_importance_weight: of a token that another policy drew.
        max_staleness: updates a group's policy may be behind; older groups are left out.
    """

    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_updates: int = Field(default=30, ge=0)
    total_updates: int | None = Field(default=None, ge=1)
    n_epochs: int = Field(default=2, ge=1)
    clip_epsilon: float = Field(default=0.2, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    kl_coef: float = Field(default=0.0, ge=0)
    max_importance_weight: float = Field(default=2.0, ge=1)
    max_staleness: int = Field(default=4, ge=0)


@dataclass(frozen=True)
class BatchEstimate:
    """What an update computes of a batch's tokens once, for all its epochs, (N, T) each. What an algorithm does not use
    is None.

    Attributes:
        log_prob: by the policy as the update found it.
        weight: truncated importance of tokens that another policy drew.
        advantage: what the policy learns from; 0 where nothing is learnt.
        reference_log_prob: by the reference policy.
        value: the value head's estimate before the token.
        target: what the value head learns.
    """

    log_prob: Tensor
    weight: Tensor
    advantage: Tensor
    reference_log_prob: Tensor | None
    value: Tensor | None = None
    target: Tensor | None = None


class PolicyLearner:
    """Takes Adam steps on a policy's weights by clipped gradients, and saves both."""

    def __init__(self, policy: LanguagePolicy, learning_rate: float, max_grad_norm: float) -> None:
        self.policy, self._max_grad_norm = policy, max_grad_norm
        self._flat = FlatParameters(policy.model)
        self._optimizer = FlatAdam(self._flat.vector, learning_rate)

    def _compute_gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss () for the next step; returns the norm it had before it was clipped."""
        self._flat.gradient.zero_()
        torch.autograd.backward(loss)
        return self._flat.clip_gradient(self._max_grad_norm)

    def state_dict(self) -> State:
        """The weights and the optimiser's state, copies as arrays by name: all that a bit-identical continuation
        needs."""
        return _arrays("policy.", self.policy.model.state_dict()) | _arrays("optimizer.", self._optimizer.state)

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal learner; the tensors are changed in place."""
        self.policy.model.load_state_dict(_tensors("policy.", state))
        for name, value in _tensors("optimizer.", state).items():
            self._optimizer.state[name].copy_(value)


class LanguageLearner(PolicyLearner, ABC):
    """Learns a `LanguagePolicy` from groups; `version` counts its updates. A subclass says what tokens were worth, and
    how terms are averaged.

    `policy` itself is changed. With a `kl_coef`, `reference` is the policy whose neighbourhood it is held to, a copy of
    `policy` as it is now where none is given; else it is not used.
    """

    needs_values: ClassVar[bool] = False  # whether the policy must have a value head

    def __init__(self, config: LearnerConfig, policy: LanguagePolicy, reference: LanguagePolicy | None = None) -> None:
        self.config = config
        self.version = 0  # of the policy: how often it was updated
        kept = copy.deepcopy((reference or policy).model) if config.kl_coef else None
        self._reference = None if kept is None else kept.requires_grad_(False)
        super().__init__(policy, config.learning_rate, config.max_grad_norm)

    # --- learning ---

    def update(self, groups: Sequence[TokenGroup]) -> dict[str, float]:
        """Learn from groups, all of them in each of `n_epochs` gradient steps; `version` is one higher afterwards.

        Returns:
            `num_groups`, `num_stale_groups` (older than `max_staleness`, left out), `num_silent_groups` (that teach
            nothing), `mean_score` and `mean_lag` (in versions); where any group teaches, also the losses and metrics of
            the last gradient step, and its `learning_rate`.

        Raises:
            ArtifactError: for tokens that the policy cannot read; nothing was changed.
            LoomRLError: when a gradient is not finite; steps before it were made, and the weights stay finite.
        """
        for group in groups:
            group.require_readable(self.policy.model.config)
        fresh = [group for group in groups if self._lag(group) <= self.config.max_staleness]
        told = [group for group in fresh if self._teaches(group)]
        metrics = {
            "num_groups": float(len(groups)),
            "num_stale_groups": float(len(groups) - len(fresh)),
            "num_silent_groups": float(len(fresh) - len(told)),
            "mean_score": _mean([score for group in groups for score in group.scores]),
            "mean_lag": _mean([self._lag(group) for group in fresh]),
        }
        if told:
            share = sum(map(len, told)) / sum(map(len, fresh))
            metrics |= self._learn(told, share)
        self.version += 1
        return metrics

    def _learn(self, groups: Sequence[TokenGroup], share: float) -> dict[str, float]:
        """All epochs; `share` is that of the samples in all fresh ones, of which the others teach nothing."""
        batch = TokenBatch.of_groups(groups)
        estimate: BatchEstimate | None = None
        metrics: dict[str, Tensor] = {}
        self._optimizer.learning_rate = learning_rate(self.config, self.version)
        for _ in range(self.config.n_epochs):
            states = answer_states(self.policy.model, batch)
            log_prob = token_log_probs(self.policy.model, batch, states)
            if estimate is None:
                with torch.no_grad():
                    estimate = self._estimate(batch, groups, states.detach(), log_prob.detach())
            metrics = self._step(batch, estimate, states, log_prob, share)
        rate = {"learning_rate": self._optimizer.learning_rate}
        return {name: value.item() for name, value in metrics.items()} | rate

    def _step(
        self, batch: TokenBatch, estimate: BatchEstimate, states: Tensor, log_prob: Tensor, share: float
    ) -> dict[str, Tensor]:
        config = self.config
        surrogate = clipped_surrogate(log_prob, estimate.log_prob, estimate.advantage, config.clip_epsilon)
        losses = {"policy_loss": self._mean(surrogate * estimate.weight, batch.loss_mask)}
        if estimate.reference_log_prob is not None:
            divergence = reference_divergence(log_prob, estimate.reference_log_prob)
            losses["reference_kl"] = config.kl_coef * self._mean(divergence, batch.loss_mask)
        losses |= self._more_losses(batch, estimate, states)
        grad_norm = self._compute_gradient(share * torch.stack(list(losses.values())).sum())
        metrics = {name: value.detach() for name, value in losses.items()} | {"grad_norm": grad_norm}
        if not grad_norm.isfinite():
            raise LoomRLError(
                f"learning: the gradient of update {self.version + 1} is {grad_norm.item()}; no weight was "
                "changed by it; lower learning_rate, or look at the groups' scores, advantages and temperatures"
            )
        self._optimizer.step()
        return metrics | _step_metrics(log_prob.detach(), estimate, batch.loss_mask, config.clip_epsilon)

    def _reference_log_prob(self, batch: TokenBatch) -> Tensor | None:
        if self._reference is None:
            return None
        return token_log_probs(self._reference, batch, answer_states(self._reference, batch))

    def _weight(self, batch: TokenBatch, groups: Sequence[TokenGroup], log_prob: Tensor) -> Tensor:
        """1 where nobody recorded with which probability a token was drawn."""
        rows = [row for group in groups for row in group.log_probs or [[0.0] * len(tokens) for tokens in group.tokens]]
        recorded = torch.tensor([group.log_probs is not None for group in groups for _ in group.tokens])[:, None]
        behaviour = torch.where(recorded & batch.loss_mask, batch.aligned(rows, groups), log_prob)
        return importance_weights(log_prob, behaviour, self.config.max_importance_weight)

    def _lag(self, group: TokenGroup) -> int:
        """How many updates a group's policy is behind; 0 where it is not known."""
        return 0 if group.policy_version is None else self.version - group.policy_version

    # --- what an algorithm says ---

    @abstractmethod
    def _estimate(
        self, batch: TokenBatch, groups: Sequence[TokenGroup], states: Tensor, log_prob: Tensor
    ) -> BatchEstimate:
        """What the tokens were worth; `states` (U, T, width), `log_prob` (N, T)."""

    @abstractmethod
    def _teaches(self, group: TokenGroup) -> bool:
        """Whether a group changes the policy at all."""

    @abstractmethod
    def _mean(self, per_token: Tensor, loss_mask: Tensor) -> Tensor:
        """How a term of the loss is averaged, (N, T) -> ()."""

    def _more_losses(self, batch: TokenBatch, estimate: BatchEstimate, states: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - for subclasses
        """What is minimised besides, by the metric's name."""
        return {}

    # --- state ---

    def state_dict(self) -> State:
        """Version, weights, optimiser and reference, copies by name: all that a bit-identical continuation needs."""
        state: State = {"version": self.version} | super().state_dict()
        return state | (_arrays("reference.", self._reference.state_dict()) if self._reference is not None else {})

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal learner; the tensors are changed in place."""
        self.version = int(state["version"])
        super().load_state_dict(state)
        if self._reference is not None:
            self._reference.load_state_dict(_tensors("reference.", state))


def learning_rate(config: LearnerConfig, version: int) -> float:
    """The learning rate of the update that begins at this version of the policy: it rises over
    `warmup_updates`, and falls linearly to 0 at `total_updates`, where those are given."""
    warmed = min(1.0, (version + 1) / config.warmup_updates) if config.warmup_updates else 1.0
    left = max(0.0, 1.0 - version / config.total_updates) if config.total_updates else 1.0
    return config.learning_rate * warmed * left


def given_advantages(batch: TokenBatch, groups: Sequence[TokenGroup], made: Tensor) -> Tensor:
    """The advantages that the batch's N samples learn from, (N, T): those that an environment gave for its group, else
    `made` (N, T); 0 for tokens that are not learnt and samples that are not counted."""
    rows = [row for group in groups for row in group.advantages or [[0.0] * len(tokens) for tokens in group.tokens]]
    given = torch.tensor([group.advantages is not None for group in groups for _ in group.tokens])[:, None]
    counted = torch.tensor([one for group in groups for one in group.counted or [True] * len(group)])[:, None]
    return torch.where(given, batch.aligned(rows, groups), made) * counted * batch.loss_mask


@torch.no_grad()
def _step_metrics(
    log_prob: Tensor, estimate: BatchEstimate, loss_mask: Tensor, clip_epsilon: float
) -> dict[str, Tensor]:
    log_ratio = (log_prob - estimate.log_prob)[loss_mask]
    ratio = log_ratio.exp()
    return {
        "approx_kl": (ratio - 1.0 - log_ratio).mean(),  # http://joschu.net/blog/kl-approx.html, estimator k3
        "clip_fraction": ((ratio - 1.0).abs() > clip_epsilon).float().mean(),
        "entropy": -log_prob[loss_mask].mean(),  # of tokens the policy drew itself
        "importance_weight": estimate.weight[loss_mask].mean(),
    }


def _arrays(prefix: str, tensors: dict[str, Any]) -> State:
    return {f"{prefix}{name}": value.numpy().copy() for name, value in tensors.items()}


def _tensors(prefix: str, state: State) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in below(prefix, state).items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""GRPO and PPO: gradients by a second implementation, staleness, what is left out, and resuming to the bit."""

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from loomrl.errors import ConfigError, LoomRLError
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LanguageLearner, LearnerConfig, learning_rate
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from tests.support.language_models import DIGITS, plain_hidden, plain_log_probs, small_policy

PROMPTS = ["1+2=", "47+38=", "9+9="]


def answered(policy: LanguagePolicy, version: int = 0, seed: int = 0) -> list[TokenGroup]:
    """Groups of four; a sample is the better the more threes it has, and no two are equal."""
    completions = policy.answer(PROMPTS, 4, SamplingConfig(max_tokens=5), torch.Generator().manual_seed(seed))
    return [
        TokenGroup.of_completions(
            DIGITS.prompt(prompt),
            ones,
            [policy.text(one).count("3") + 0.1 * number for number, one in enumerate(ones)],
            version,
        )
        for prompt, ones in zip(PROMPTS, completions, strict=True)
    ]


def grpo(seed: int = 0, **config: float) -> GRPO:
    return GRPO(LearnerConfig(**config), small_policy(seed, noise=0.3))  # type: ignore[arg-type]


def ppo(seed: int = 0, **config: float | str) -> LanguagePPO:
    return LanguagePPO(LanguagePPOConfig(**config), small_policy(seed, value_head=True, noise=0.3))  # type: ignore[arg-type]


def samples(groups: list[TokenGroup]) -> list[tuple[list[int], Tensor, Tensor]]:
    """Tokens, which of all but the first are learnt, and the recorded log-probabilities of those."""
    return [
        (tokens, torch.tensor(learnt[1:]), torch.tensor(log_probs[1:]))
        for group in groups
        for tokens, learnt, log_probs in zip(group.tokens, group.loss_mask, group.log_probs or [], strict=True)
    ]


def first_gradient(learner: LanguageLearner, groups: list[TokenGroup]) -> Tensor:
    """What the first step of an update follows: Adam's first moment is a tenth of it."""
    learner.update(groups)
    return learner.state_dict()["optimizer.exp_avg"] * 10.0  # type: ignore[operator,return-value]


def test_the_first_gradient_of_grpo_is_that_of_its_equation() -> None:
    """Equation 3 of arXiv 2402.03300 with the divergence, one sample at a time."""
    reference = small_policy(1, noise=0.3)
    config = LearnerConfig(n_epochs=1, kl_coef=0.3, max_grad_norm=1e9)
    learner = GRPO(config, small_policy(noise=0.3), reference)
    groups = answered(small_policy(noise=0.3))
    plain = small_policy(noise=0.3).model
    loss = torch.zeros(())
    for group in groups:
        scores = torch.tensor(group.scores)
        advantages = (scores - scores.mean()) / scores.std(correction=0)
        for (tokens, learnt, _), advantage in zip(samples([group]), advantages, strict=True):
            log_prob = plain_log_probs(plain, tokens)[learnt]
            to_reference = plain_log_probs(reference.model, tokens)[learnt].detach() - log_prob
            divergence = to_reference.exp() - to_reference - 1.0
            loss = loss - ((log_prob - log_prob.detach()).exp() * advantage - 0.3 * divergence).mean() / 12
    expected = torch.cat([gradient.ravel() for gradient in torch.autograd.grad(loss, list(plain.parameters()))])
    torch.testing.assert_close(torch.as_tensor(first_gradient(learner, groups)), expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("mean_over", ["tokens", "samples"])
def test_the_first_gradient_of_ppo_is_that_of_its_equations(mean_over: Literal["tokens", "samples"]) -> None:
    learner = ppo(n_epochs=1, max_grad_norm=1e9, gae_lambda=0.7, gamma=0.9, value_loss_coef=0.5, mean_over=mean_over)
    plain = small_policy(value_head=True, noise=0.3).model
    groups = answered(small_policy(value_head=True, noise=0.3))
    scores = [score for group in groups for score in group.scores]
    log_probs, advantages, values, targets, weights = [], [], [], [], []
    for (tokens, learnt, _), score in zip(samples(groups), scores, strict=True):
        value = plain.values(plain_hidden(plain, tokens)[:-1])[learnt]
        rewards = torch.zeros(len(value))
        rewards[-1] = score
        advantage = torch.zeros(len(value))
        running = 0.0
        for step in range(len(value) - 1, -1, -1):
            after = value[step + 1].item() if step + 1 < len(value) else 0.0
            running = rewards[step].item() + 0.9 * after - value[step].item() + 0.9 * 0.7 * running
            advantage[step] = running
        log_probs.append(plain_log_probs(plain, tokens)[learnt])
        advantages.append(advantage)
        values.append(value)
        targets.append(advantage + value.detach())
        weights.append(torch.full((len(value),), 1.0 if mean_over == "tokens" else 1.0 / len(value)))
    columns = (log_probs, advantages, values, targets, weights)
    log_prob, advantage, value, target, weight = (torch.cat(parts) for parts in columns)
    assert len({len(one) for one in weights}) > 1
    weight = weight / weight.sum()
    normalized = (advantage - advantage.mean()) / advantage.std(correction=0)
    surrogate = (weight * (log_prob - log_prob.detach()).exp() * normalized).sum()
    loss = -surrogate + 0.5 * (weight * (value - target) ** 2).sum()
    expected = torch.cat([gradient.ravel() for gradient in torch.autograd.grad(loss, list(plain.parameters()))])
    torch.testing.assert_close(torch.as_tensor(first_gradient(learner, groups)), expected, atol=5e-5, rtol=1e-3)


def test_groups_that_teach_nothing_count_in_the_mean_and_are_not_computed() -> None:
    groups = answered(small_policy(noise=0.3))
    alike = TokenGroup(**{**vars(groups[2]), "scores": [1.0] * 4})
    mixed = grpo(n_epochs=1, max_grad_norm=1e9)
    whole = torch.as_tensor(first_gradient(mixed, [*groups[:2], alike]))
    without = torch.as_tensor(first_gradient(grpo(n_epochs=1, max_grad_norm=1e9), groups[:2]))
    torch.testing.assert_close(whole, without * 8 / 12)
    assert mixed.update([alike])["num_silent_groups"] == 1.0
    before = mixed.policy.model.token_embedding.weight.clone()
    mixed.update([alike])
    assert torch.equal(before, mixed.policy.model.token_embedding.weight)
    assert mixed.version == 3


def test_equal_scores_pull_nowhere_where_the_divergence_has_them_computed() -> None:
    policy = small_policy(noise=0.3)
    (completions,) = policy.answer(["1+2="], 7, SamplingConfig(max_tokens=5), torch.Generator().manual_seed(0))
    alike = TokenGroup.of_completions(policy.tokenizer.prompt("1+2="), completions, [0.7] * 7, 0)
    gradient = first_gradient(GRPO(LearnerConfig(n_epochs=1, kl_coef=0.3), policy), [alike])
    assert abs(gradient).max() < 1e-6  # the policy is its own reference


def test_groups_that_are_too_old_are_left_out() -> None:
    learner = grpo(max_staleness=1)
    for _ in range(2):
        learner.update(answered(learner.policy, learner.version))
    old, new = answered(learner.policy, 0), answered(learner.policy, 1)
    metrics = learner.update([*old, *new])
    assert (metrics["num_stale_groups"], metrics["mean_lag"]) == (3.0, 1.0)


def test_tokens_of_another_policy_are_weighted_by_truncated_importance() -> None:
    """The first gradient with weights is that of each sample's terms times min(p / q, 2)."""
    other = small_policy(3, noise=0.4)
    groups = answered(other)
    plain = small_policy(noise=0.3).model
    loss, weights = torch.zeros(()), []
    for group in groups:
        scores = torch.tensor(group.scores)
        advantages = (scores - scores.mean()) / scores.std(correction=0)
        for (tokens, learnt, drawn), advantage in zip(samples([group]), advantages, strict=True):
            log_prob = plain_log_probs(plain, tokens)[learnt]
            weight = (log_prob.detach() - drawn[learnt]).exp().clamp(max=2.0)
            weights.append(weight)
            loss = loss - (weight * (log_prob - log_prob.detach()).exp() * advantage).mean() / 12
    expected = torch.cat([gradient.ravel() for gradient in torch.autograd.grad(loss, list(plain.parameters()))])
    learner = grpo(n_epochs=1, max_grad_norm=1e9)
    torch.testing.assert_close(torch.as_tensor(first_gradient(learner, groups)), expected, atol=2e-5, rtol=1e-3)
    all_of_them = torch.cat(weights)
    assert all_of_them.max() == 2.0
    assert all_of_them.min() < 0.9


def test_own_tokens_weigh_1_and_so_do_those_nobody_recorded() -> None:
    learner = grpo()
    own = answered(learner.policy)
    unrecorded = [TokenGroup(**{**vars(group), "log_probs": None}) for group in answered(small_policy(3))]
    assert grpo().update(own)["importance_weight"] == pytest.approx(1.0, abs=1e-4)
    assert learner.update(unrecorded)["importance_weight"] == 1.0


def test_advantages_that_an_environment_gave_are_kept_and_samples_set_aside_have_none() -> None:
    policy = small_policy(noise=0.3)
    (group, *_) = answered(policy)
    given = [[0.0] * len(tokens) for tokens in group.tokens]
    plain = small_policy(noise=0.3).model
    given[1] = [0.5] * len(given[1])
    given[2] = [7.0] * len(given[2])
    changed = TokenGroup(**{**vars(group), "advantages": given, "counted": [True, True, False, True]})
    tokens, learnt, _ = samples([group])[1]
    loss = -0.5 * plain_log_probs(plain, tokens)[learnt].mean() / 4
    expected = torch.cat([gradient.ravel() for gradient in torch.autograd.grad(loss, list(plain.parameters()))])
    learner = grpo(n_epochs=1, max_grad_norm=1e9)
    torch.testing.assert_close(torch.as_tensor(first_gradient(learner, [changed])), expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("make", [grpo, ppo])
def test_a_gradient_that_is_no_number_changes_no_weight(make: Callable[..., LanguageLearner]) -> None:
    learner = make()
    before = learner.policy.model.token_embedding.weight.clone()
    hopeless = [TokenGroup(**{**vars(group), "temperatures": [1e-50] * 4}) for group in answered(learner.policy)]
    with pytest.raises(LoomRLError, match="the gradient of update 1 is nan; no weight was changed"):
        learner.update(hopeless)
    assert torch.equal(before, learner.policy.model.token_embedding.weight)


@pytest.mark.parametrize("make", [grpo, ppo])
def test_a_resumed_learner_goes_on_to_the_bit(make: Callable[..., LanguageLearner]) -> None:
    first = make(kl_coef=0.1)
    for seed in range(2):
        first.update(answered(first.policy, first.version, seed))
    state = first.state_dict()
    second = make(1, kl_coef=0.1)
    second.load_state_dict(state)
    for seed in range(2, 4):
        told = [one.update(answered(one.policy, one.version, seed)) for one in (first, second)]
        assert told[0] == told[1]
    ended, resumed = first.state_dict(), second.state_dict()
    assert ended.keys() == resumed.keys()
    assert all(
        (ended[name] == resumed[name]) if name == "version" else (ended[name] == resumed[name]).all() for name in ended
    )  # type: ignore[union-attr]


def test_the_reference_holds_the_policy() -> None:
    distances = []
    for kl_coef in (0.0, 3.0):
        learner = GRPO(LearnerConfig(learning_rate=3e-3, warmup_updates=0, kl_coef=kl_coef), small_policy(noise=0.3))
        for seed in range(10):
            learner.update(answered(learner.policy, learner.version, seed))
        tokens = DIGITS.prompt("1+2=")
        logits = [
            one.model.logits(plain_hidden(one.model, tokens)[-1]) for one in (learner.policy, small_policy(noise=0.3))
        ]
        first, second = (one.log_softmax(-1).detach() for one in logits)
        distances.append((first.exp() * (first - second)).sum().item())
    assert distances[1] < 0.5 * distances[0]
    assert math.isfinite(distances[0])


def test_the_learning_rate_rises_and_falls() -> None:
    config = LearnerConfig(learning_rate=1.0, warmup_updates=4, total_updates=10)
    rates = [learning_rate(config, version) for version in range(11)]
    assert rates == pytest.approx([0.25, 0.5 * 0.9, 0.75 * 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert learning_rate(LearnerConfig(learning_rate=1.0, warmup_updates=0), 1_000) == 1.0


def test_ppo_asks_for_a_value_head() -> None:
    with pytest.raises(ConfigError, match="value head"):
        LanguagePPO(LanguagePPOConfig(), small_policy())

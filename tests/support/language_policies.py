"""Small language policies that are not indifferent, what a model itself says of completions, and groups on the wire."""

from collections.abc import Sequence
from typing import Any

import torch

from loomrl.language.inference import Completion, Completions
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import MASKED
from loomrl.language.policies.tokens import CharacterTokenizer

ALPHABET = "0123456789+=- "


def language_policy(seed: int = 0, max_tokens: int = 48) -> LanguagePolicy:
    """A policy of characters that prefers some tokens to others."""
    policy = LanguagePolicy.fresh(
        seed, CharacterTokenizer(ALPHABET), width=16, num_layers=2, num_heads=2, max_tokens=max_tokens
    )
    with torch.no_grad():
        policy.model.token_embedding.weight.mul_(1.6)
    return policy


@torch.no_grad()
def log_probs_of(
    policy: LanguagePolicy, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> list[float]:
    """What the model gives an answer's tokens, read in one piece without any cache."""
    tokens = torch.tensor([[*prompt, *answer]])
    hidden = policy.model(tokens, torch.ones_like(tokens, dtype=torch.bool), SharedPrefix())
    all_of_them = torch.log_softmax(policy.model.logits(hidden)[0] / temperature, -1)
    return all_of_them[len(prompt) - 1 : -1].gather(1, torch.tensor(answer)[:, None]).squeeze(1).tolist()


def check_made_by(policy: LanguagePolicy, answer: Completions, completion: Completion, temperature: float) -> None:
    """Whether a policy made a completion: its log-probabilities say so."""
    expected = log_probs_of(policy, answer.prompt_token_ids, completion.token_ids, temperature)
    torch.testing.assert_close(torch.tensor(completion.log_probs), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def wire_of(group: TokenGroup) -> dict[str, Any]:
    """A group as a hub takes it; the policy's version goes beside it."""
    masks = [
        [token if loss_mask else MASKED for token, loss_mask in zip(*rows, strict=True)]
        for rows in zip(group.tokens, group.loss_mask, strict=True)
    ]
    temperatures, counted = group.temperatures or [1.0] * len(group), group.counted or [True] * len(group)
    return {
        "tokens": group.tokens,
        "masks": masks,
        "scores": group.scores,
        "inference_logprobs": group.log_probs,
        "advantages": group.advantages,
        "overrides": [
            {"temperature": temperature, "set_advantage_to_zero": not counts}
            for temperature, counts in zip(temperatures, counted, strict=True)
        ],
    }

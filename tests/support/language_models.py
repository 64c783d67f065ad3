"""Small language policies for tests, and what they say computed the plain way: one sequence, no cache, no padding."""

import torch
from torch import Tensor

from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer
from loomrl.language.policies.transformer import Transformer

DIGITS = CharacterTokenizer("0123456789+=")


def small_policy(seed: int = 0, value_head: bool = False, noise: float = 0.1) -> LanguagePolicy:
    """One with weights of some size everywhere, so that nothing is equal by being zero."""
    policy = LanguagePolicy.fresh(seed, DIGITS, width=16, num_heads=2, max_tokens=24, value_head=value_head)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=noise)
    return policy


def plain_hidden(model: Transformer, tokens: list[int]) -> Tensor:
    """Hidden states (T, width) of one sequence."""
    hidden: Tensor = model(torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.bool), SharedPrefix())[0]
    return hidden


def plain_log_probs(model: Transformer, tokens: list[int], temperature: float = 1.0) -> Tensor:
    """log p of every token but the first, given those before it, (T - 1,)."""
    log_probs = torch.log_softmax(model.logits(plain_hidden(model, tokens)[:-1]) / temperature, -1)
    return log_probs.gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)

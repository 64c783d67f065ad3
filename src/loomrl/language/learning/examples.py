"""Supervised learning from right answers: what a warm start is made of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from loomrl.algorithms.base import State, below
from loomrl.algorithms.flat import FlatAdam, FlatParameters
from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.losses import mean_of_tokens
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import Tokenizer


def example(tokenizer: Tokenizer, prompt: str, right: str) -> TokenGroup:
    """A right answer to a prompt, as a group with one sample."""
    before, answer = tokenizer.prompt(prompt), tokenizer.answer(right)
    return TokenGroup([before + answer], [[False] * len(before) + [True] * len(answer)], [1.0])


def supervised_loss(
    policy: LanguagePolicy,
    examples: Sequence[TokenGroup],
    mean: Callable[[Tensor, Tensor], Tensor] = mean_of_tokens,
) -> Tensor:
    """The negated log-probability of the tokens of right answers, (), averaged as `loomrl.language.learning.losses`
    can.
    """
    batch = TokenBatch.of_groups(examples)
    log_probs = token_log_probs(policy.model, batch, answer_states(policy.model, batch))
    return -mean(log_probs, batch.loss_mask)


class ExampleLearner:
    """Imitates right answers: takes gradient steps on their log-probability."""

    def __init__(self, policy: LanguagePolicy, learning_rate: float, max_grad_norm: float) -> None:
        self._policy, self._max_grad_norm = policy, max_grad_norm
        self._flat = FlatParameters(policy.model)
        self._optimizer = FlatAdam(self._flat.vector, learning_rate)

    def step(self, examples: Sequence[TokenGroup]) -> float:
        """Learn from examples, all in one step; returns the loss before it."""
        loss = supervised_loss(self._policy, examples)
        self._flat.gradient.zero_()
        torch.autograd.backward(loss)
        self._flat.clip_gradient(self._max_grad_norm)
        self._optimizer.step()
        return loss.item()

    def state_dict(self) -> State:
        """Policy and optimiser: all that going on to the bit needs."""
        state: State = {
            f"policy.{name}": value.numpy().copy() for name, value in self._policy.model.state_dict().items()
        }
        return state | {f"optimizer.{name}": value.numpy().copy() for name, value in self._optimizer.state.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal learner; the tensors are changed in place."""
        weights = {name: torch.from_numpy(value) for name, value in below("policy.", state).items()}
        self._policy.model.load_state_dict(weights)
        for name, value in below("optimizer.", state).items():
            self._optimizer.state[name].copy_(torch.from_numpy(value))

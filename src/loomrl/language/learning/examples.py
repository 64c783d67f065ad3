"""Supervised learning from right answers: what a warm start is made of."""

from collections.abc import Callable, Sequence

from pydantic import Field
from torch import Tensor

from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.learner import PolicyLearner
from loomrl.language.learning.losses import mean_of_tokens
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import Tokenizer
from loomrl.system.schema import Section


def example(tokenizer: Tokenizer, prompt: str, right: str) -> TokenGroup:
    """A right answer to a prompt, as a group with one sample, of which the answer and its end are learnt.

    Raises:
        ConfigError: for a text that the tokenizer does not know.
    """
    before, answer = tokenizer.prompt(prompt), tokenizer.answer(right)
    return TokenGroup([before + answer], [[False] * len(before) + [True] * len(answer)], [1.0])


def supervised_loss(
    policy: LanguagePolicy,
    examples: Sequence[TokenGroup],
    mean: Callable[[Tensor, Tensor], Tensor] = mean_of_tokens,
) -> Tensor:
    """The negated log-probability in nats of the learnt tokens of examples, (), averaged by `mean`, one of the means
    of `loomrl.language.learning.losses`. Raises ValueError for no examples."""
    batch = TokenBatch.of_groups(examples)
    log_probs = token_log_probs(policy.model, batch, answer_states(policy.model, batch))
    return -mean(log_probs, batch.loss_mask)


class ExampleLearningConfig(Section):
    """How right answers are learnt, `batch_size` of them in a gradient step, and `target_accuracy`, the share of the
    policy's own greedy answers that must be right in the end."""

    target_accuracy: float = Field(default=0.3, gt=0, le=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    batch_size: int = Field(default=64, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0)


class ExampleLearner(PolicyLearner):
    """A `PolicyLearner` that imitates right answers: takes gradient steps on their log-probability."""

    def step(self, examples: Sequence[TokenGroup]) -> float:
        """Take one gradient step on all these examples, at least one; returns the loss before it, in nats per learnt
        token."""
        loss = supervised_loss(self.policy, examples)
        self._compute_gradient(loss)
        self._optimizer.step()
        return loss.item()

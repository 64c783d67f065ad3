"""How many of some tasks a policy gets right."""

from collections import defaultdict
from collections.abc import Sequence

import torch

from loomrl.gym.domains import get_domain
from loomrl.gym.tasks import Task
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig

_BATCH = 256  # prompts answered together


def accuracy(policy: LanguagePolicy, tasks: Sequence[Task], max_tokens: int) -> dict[str, float]:
    """The share of tasks, 0 to 1 by domain, that the policy's greedy answer of at most `max_tokens` tokens gets right.

    Raises:
        ConfigError: for a task that the policy's tokenizer does not know, or that leaves no room for an answer.
        LoomRLError: where the policy's logits are no numbers.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    greedy = SamplingConfig(temperature=0.0, max_tokens=max_tokens)
    for start in range(0, len(tasks), _BATCH):
        asked = tasks[start : start + _BATCH]
        answered = policy.answer([task.prompt for task in asked], 1, greedy, torch.Generator())
        for task, (completion,) in zip(asked, answered, strict=True):
            right[task.domain].append(get_domain(task.domain).score(task, policy.text(completion)).solved)
    return {domain: sum(outcomes) / len(outcomes) for domain, outcomes in right.items()}

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
    """The share of each domain's tasks that the policy's likeliest answer gets right; no answer is drawn."""
    right: dict[str, list[bool]] = defaultdict(list)
    greedy = SamplingConfig(temperature=0.0, max_tokens=max_tokens)
    for start in range(0, len(tasks), _BATCH):
        asked = tasks[start : start + _BATCH]
        answered = policy.answer([task.prompt for task in asked], 1, greedy, torch.Generator())
        for task, (completion,) in zip(asked, answered, strict=True):
            right[task.domain].append(get_domain(task.domain).score(task, policy.text(completion)).solved)
    return {domain: sum(outcomes) / len(outcomes) for domain, outcomes in right.items()}

"""How often a policy solves tasks it was never trained on."""

import logging
from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np
import torch

from loomrl.gym.domains import get_domain
from loomrl.gym.held_out import HELD_OUT, draw
from loomrl.gym.tasks import Task
from loomrl.language.policies.generation import generate
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.dialogue import PolicyMessage, TaskAttempt, play
from loomrl.training.integrated.results import Rates, means

log = logging.getLogger(__name__)


def held_out_tasks(config: GymTrainingConfig, seed: int) -> list[Task]:
    """Tasks that no environment draws, `evaluation_tasks` of each domain, which follow from `seed`; a domain that has
    fewer asks some again.

    Raises:
        ConfigError: where a level of a domain has none, or a domain or kind there is not.
    """
    return [task for domain in config.domains for task in _of_domain(config, domain, seed)]


def success_rates(
    tasks: Sequence[Task], config: GymTrainingConfig, policy: LanguagePolicy, generator: torch.Generator
) -> Rates:
    """The share of each domain's tasks, 0 to 1, that the policy solves in one attempt, its messages drawn as in
    training, with `generator`. An attempt that breaks counts as not solved, and is logged."""
    sampling = SamplingConfig(max_tokens=config.max_message_tokens)

    def answer(prompts: Sequence[Sequence[int]]) -> list[PolicyMessage]:
        answered = generate(policy.model, prompts, 1, sampling, generator)
        return [PolicyMessage(one.token_ids, one.log_probs, 0) for (one,) in answered]

    attempts = [TaskAttempt(task, policy.tokenizer, config.max_turns, config.max_prompt_tokens) for task in tasks]
    play(attempts, answer)
    for attempt in attempts:
        if attempt.fault:
            log.warning("evaluation: %s", attempt.fault)
    return means((attempt.task.domain, float(attempt.has_succeeded)) for attempt in attempts)


def _of_domain(config: GymTrainingConfig, domain: str, seed: int) -> list[Task]:
    rng, kinds, found = np.random.default_rng(seed), config.kinds_of(domain), get_domain(domain)
    levels = islice(cycle(config.levels), config.evaluation_tasks)
    return [draw(found, level, kinds, rng, config.held_out_share, HELD_OUT) for level in levels]

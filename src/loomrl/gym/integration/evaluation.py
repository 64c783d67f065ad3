"""How often a policy solves tasks it was never trained on."""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from loomrl.errors import ConfigError
from loomrl.gym.domains import get_domain
from loomrl.gym.held_out import is_held_out
from loomrl.gym.integration.config import GymTrainingConfig
from loomrl.gym.integration.dialogue import Attempt, Message, play
from loomrl.gym.integration.results import Rates, means
from loomrl.gym.tasks import Task
from loomrl.language.generation import generate
from loomrl.language.policy import LanguagePolicy
from loomrl.language.sampling import Sampling

log = logging.getLogger(__name__)

_TRIES = 100  # tasks drawn for each that is wanted


def held_out_tasks(config: GymTrainingConfig, seed: int) -> list[Task]:
    """Tasks that no environment draws, `evaluation_tasks` of each domain; one that has fewer asks some again.

    Raises:
        ConfigError: where a domain has none.
    """
    return [task for domain in config.domains for task in _of_domain(config, domain, seed)]


def success_rates(
    tasks: Sequence[Task], config: GymTrainingConfig, policy: LanguagePolicy, generator: torch.Generator
) -> Rates:
    """The share of each domain's tasks that the policy solves in one attempt, its messages drawn as in training.

    What broke is not solved, and logged.
    """
    sampling = Sampling(max_tokens=config.max_message_tokens)

    def answer(prompts: Sequence[Sequence[int]]) -> list[Message]:
        answered = generate(policy.model, prompts, 1, sampling, generator)
        return [Message(one.token_ids, one.log_probs, 0) for (one,) in answered]

    attempts = [Attempt(task, policy.tokenizer, config.max_turns, config.max_prompt_tokens) for task in tasks]
    play(attempts, answer)
    for attempt in attempts:
        if attempt.fault:
            log.warning("evaluation: %s", attempt.fault)
    return means((attempt.task.domain, float(attempt.has_succeeded)) for attempt in attempts)


def _of_domain(config: GymTrainingConfig, domain: str, seed: int) -> list[Task]:
    rng, kinds, found = np.random.default_rng(seed), config.kinds_of(domain), list[Task]()
    for number in range(_TRIES * config.evaluation_tasks):
        task = get_domain(domain).generate(rng, config.levels[number % len(config.levels)], kinds)
        if is_held_out(task, config.held_out_share):
            found.append(task)
        if len(found) == config.evaluation_tasks:
            return found
    raise ConfigError(f"{domain}: hardly any task of the levels {config.levels} is held out; raise held_out_share")

"""A policy's first lessons: solved dialogues, imitated until some of its own succeed.

Reinforcement finds nothing where no episode ever succeeds. When to stop is measured in each domain, never counted in
steps. All domains are taught until the last is there: one that is left out is soon forgotten.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from loomrl.errors import LoomRLError
from loomrl.gym.domains import get_domain
from loomrl.gym.held_out import TRAINING, draw
from loomrl.gym.tasks import Task
from loomrl.language.learning.examples import supervised_loss
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.losses import mean_of_samples
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import MASKED
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.dialogue import demonstration
from loomrl.training.integrated.evaluation import success_rates
from loomrl.training.integrated.results import Rates

_LEARNING_RATE = 3e-3
_BATCH_TOKENS = 1_600  # of each domain in a gradient step: some fifteen dialogues with a tool, or 150 sums
_CHECK_INTERVAL = 25  # gradient steps between two measurements
_CHECK_TASKS = 60  # of each domain
_MAX_CHECKS = 80
_MAX_GRAD_NORM = 1.0


def warm_start(
    policy: LanguagePolicy,
    config: GymTrainingConfig,
    seed: int,
    goes_on: Callable[[Rates], bool],
) -> None:
    """Have the policy imitate solved dialogues, in place, until it solves `warm_start_accuracy` of each domain's tasks.

    What is measured are tasks drawn anew, never held-out ones. A policy that is as good already is left as it is.
    `goes_on` is called with the success rates of each measurement, and ends the warm start by returning False.

    Raises:
        LoomRLError: when the accuracy is not reached.
        EnvironmentFault: when a task cannot be shown within the limits on tokens.
        ConfigError: when a level of a domain has no tasks to train on.
    """
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=_LEARNING_RATE)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for _ in range(_MAX_CHECKS):
        asked = [_draw(config, domain, rng) for domain in config.domains for _ in range(_CHECK_TASKS)]
        measured = success_rates(asked, config, policy, generator)
        if not goes_on(measured) or min(measured.values()) >= config.warm_start_accuracy:
            return
        for _ in range(_CHECK_INTERVAL):
            _learn_from_shown(policy, optimizer, [_shown(policy, config, domain, rng) for domain in config.domains])
    raise LoomRLError(
        f"warm start: after {_MAX_CHECKS * _CHECK_INTERVAL} steps the policy succeeds in {measured}, not in "
        f"{config.warm_start_accuracy} of all; name shorter kinds, lower levels or warm_start_accuracy"
    )


def _learn_from_shown(
    policy: LanguagePolicy, optimizer: torch.optim.Optimizer, shown: Sequence[list[TokenGroup]]
) -> None:
    """A gradient step on the log-probability of what was said; domain by domain, for their lengths differ much."""
    optimizer.zero_grad(set_to_none=False)  # gradients may be views of the learner's
    for groups in shown:
        torch.autograd.backward(supervised_loss(policy, groups, mean_of_samples) / len(shown))
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), _MAX_GRAD_NORM)
    optimizer.step()


def _shown(
    policy: LanguagePolicy, config: GymTrainingConfig, domain: str, rng: np.random.Generator
) -> list[TokenGroup]:
    """Dialogues until their tokens are enough: of short ones, which cost less, more are shown."""
    room = config.max_prompt_tokens, config.max_message_tokens
    found: list[TokenGroup] = []
    missing = _BATCH_TOKENS
    while missing > 0:
        shown = demonstration(_draw(config, domain, rng), policy.tokenizer, *room)
        found.append(TokenGroup([shown.tokens], [[mask != MASKED for mask in shown.masks]], [1.0]))
        missing -= len(shown.tokens)
    return found


def _draw(config: GymTrainingConfig, domain: str, rng: np.random.Generator) -> Task:
    """A task of any of the levels that is not held out."""
    level = config.levels[int(rng.integers(len(config.levels)))]
    return draw(get_domain(domain), level, config.kinds_of(domain), rng, config.held_out_share, TRAINING)

"""A policy's first lessons: right answers, learnt until some of its own are right.

Reinforcement learning finds nothing where no answer is ever right. When to stop is measured, for every domain by
itself, and never counted in steps: how long it takes differs from seed to seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pydantic import Field

from loomrl.errors import LoomRLError
from loomrl.gym.stream import TaskStream
from loomrl.gym.tasks import Task
from loomrl.language.learning.evaluation import accuracy
from loomrl.language.learning.examples import ExampleLearner, ExampleLearningConfig, example
from loomrl.language.policies.policy import LanguagePolicy


class WarmStartConfig(ExampleLearningConfig):
    """When a warm start ends, and how it learns until then. `target_accuracy` is to be reached in every domain. That is
    measured on `num_check_tasks` tasks every `check_interval` gradient steps; after `max_steps` of them it has failed.
    """

    check_interval: int = Field(default=50, ge=1)
    num_check_tasks: int = Field(default=200, ge=1)
    max_steps: int = Field(default=20_000, ge=1)


@dataclass(frozen=True)
class WarmStart:
    """How a warm start went: gradient steps, and the share of greedy answers, 0 to 1 by domain, that were right when it
    was measured last."""

    num_steps: int
    accuracy: dict[str, float]


def warm_start(policy: LanguagePolicy, tasks: TaskStream, config: WarmStartConfig, max_tokens: int) -> WarmStart:
    """Change a policy, by learning right answers to drawn tasks, until `target_accuracy` is measured in every domain.

    A domain that has reached it waits for the others, and is taught again where it falls back. What is measured are
    tasks drawn anew, never held-out ones; `max_tokens` is what an answer may have.

    Raises:
        LoomRLError: when it is not reached within `max_steps`; the policy keeps what it learnt.
        ConfigError: for a task that the tokenizer does not know, or that leaves no room for an answer.
    """
    learner = ExampleLearner(policy, config.learning_rate, config.max_grad_norm)
    measured: dict[str, float] = {}
    waiting: set[str] = set()
    untaught = ((domain, task) for domain, task in tasks if domain not in waiting)
    for step in range(1, config.max_steps + 1):
        taught = _first(untaught, config.batch_size)
        learner.step([example(policy.tokenizer, task.prompt, task.right) for task in taught])
        if step % config.check_interval == 0:
            measured = accuracy(policy, _first(tasks, config.num_check_tasks), max_tokens)
            waiting = {domain for domain, share in measured.items() if share >= config.target_accuracy}
            if waiting == set(measured):
                return WarmStart(step, measured)
    raise LoomRLError(
        f"warm start: after {config.max_steps} steps the policy gets {measured} right, not {config.target_accuracy}; "
        "begin with easier tasks, or raise max_steps"
    )


def _first(tasks: Iterator[tuple[str, Task]], count: int) -> list[Task]:
    return [task for _, task in islice(tasks, count)]

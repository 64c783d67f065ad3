"""The environments of an integrated system: each draws tasks of its domain and has a policy attempt them in groups."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.gym.curriculum import Curriculum
from loomrl.gym.facade import GymEnvironment
from loomrl.gym.stream import TaskStream
from loomrl.gym.tasks import level_of
from loomrl.language.policies.tokens import Tokenizer
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.dialogue import Answer, Exercise, TaskAttempt, play
from loomrl.training.integrated.results import means
from loomrl.training.seeds import Purpose, derive

MAX_FAILURES = 3  # broken groups in a row, until an environment is in quarantine

log = logging.getLogger(__name__)


@dataclass
class TaskEnvironment:
    """One environment of a domain. It draws `tasks`; `max_turns` limits the policy's messages in an episode; `failures`
    counts its broken groups in a row."""

    name: str
    domain: str
    tasks: TaskStream
    max_turns: int
    failures: int = 0

    @property
    def difficulty(self) -> float:
        """The level of the tasks it draws now, from 0, as its curriculum has it."""
        return self.tasks.curriculum.difficulty(self.domain)

    @property
    def is_quarantined(self) -> bool:
        """Whether it takes no more part, after MAX_FAILURES broken groups in a row."""
        return self.failures >= MAX_FAILURES


@dataclass(frozen=True)
class AttemptGroup:
    """The attempts of one environment at one task."""

    environment: TaskEnvironment
    attempts: list[TaskAttempt]

    @property
    def fault(self) -> EnvironmentFault | None:
        """The first error that broke an attempt, or None; a group with one is not learnt from."""
        return next((attempt.fault for attempt in self.attempts if attempt.fault), None)

    @property
    def version(self) -> int:
        """The version of the oldest policy that wrote a message in any attempt; 0 where none was written in one of
        them."""
        return min(attempt.dialogue.version or 0 for attempt in self.attempts)

    def to_wire(self, env_id: int) -> dict[str, Any]:
        """The group as the JSON body that a hub's `/scored_data` takes: tokens, masks, log-probabilities and scores of
        all attempts. `env_id` is the environment's number at the hub."""
        dialogues = [attempt.dialogue for attempt in self.attempts]
        return {
            "tokens": [dialogue.tokens for dialogue in dialogues],
            "masks": [dialogue.masks for dialogue in dialogues],
            "inference_logprobs": [dialogue.log_probs for dialogue in dialogues],
            "scores": [attempt.score for attempt in self.attempts],
            "env_id": env_id,
        }


class EnvironmentPool:
    """Environments that take turns; the same seed gives the same tasks. One whose groups break MAX_FAILURES times in a
    row is in quarantine.

    Args:
        config: domains, number of environments, curriculum, limits of an episode.
        tokenizer: of the policy.
        seed: of all tasks.

    Raises:
        ConfigError: for a domain or a kind there is not, and for a domain whose tasks are pictures.
    """

    def __init__(self, config: GymTrainingConfig, tokenizer: Tokenizer, seed: int) -> None:
        self._config, self._tokenizer, self._seed = config, tokenizer, seed
        curricula = {name: Curriculum(config.curriculum(config.difficulty), [name]) for name in config.domains}
        self.environments: dict[str, TaskEnvironment] = {}
        self._saved_states: dict[str, Any] = {}  # states of environments, also of those that take no part now
        for number in range(config.environments_per_type):
            for domain, curriculum in curricula.items():
                self._add(f"{domain}-{number}", curriculum, domain, config.kinds_of(domain), config.max_turns)
        self._turn = 0

    @property
    def quarantined(self) -> list[str]:
        """The names of the environments that are in quarantine and draw no more tasks."""
        return [name for name, one in self.environments.items() if one.is_quarantined]

    @property
    def difficulties(self) -> dict[str, float]:
        """The mean difficulty of each domain's environments, a level from 0."""
        return means((one.domain, one.difficulty) for one in self.environments.values())

    def replace(self, environments: Mapping[str, GymEnvironment]) -> None:
        """Go on with a gym's environments in place of all others: with their domains, kinds, difficulties to begin
        with, and limits on steps. Here their names begin with `gym/`; one that took part before goes on where it was.

        Raises:
            ConfigError: for no environment, or one whose domain is not enabled; nothing has changed.
        """
        if not environments:
            raise ConfigError("there is no environment to train in; make some with LoomRLGym.create_environment")
        for name, one in environments.items():
            if one.domain not in self._config.domains:
                raise ConfigError(
                    f"environment {name} is of the domain {one.domain!r}, which GymTrainingConfig.enabled_env_types "
                    f"does not name; it names {', '.join(self._config.domains)}"
                )
        self._saved_states |= self._states()
        self.environments, self._turn = {}, 0
        for name, one in environments.items():
            curriculum = Curriculum(self._config.curriculum(level_of(one.config.difficulty)), [one.domain])
            kinds = one.config.kinds or self._config.kinds_of(one.domain)
            self._add(f"gym/{name}", curriculum, one.domain, kinds, min(one.config.max_steps, self._config.max_turns))
        self._restore()

    def play(self, num_groups: int, answer: Answer) -> list[AttemptGroup]:
        """Have `num_groups` tasks attempted here, with the messages that `answer` gives; returns those groups that did
        not break, which may be fewer.

        Raises:
            EnvironmentFault: when all environments are in quarantine.
            ConfigError: when a level of a domain has no tasks to train on.
        """

        def attempt(exercises: Sequence[Exercise]) -> list[list[TaskAttempt]]:
            begun = [exercise.begin(self._tokenizer) for exercise in exercises]
            play([attempt for attempts in begun for attempt in attempts], answer)
            return begun

        return self.play_by(num_groups, attempt)

    def play_by(
        self, num_groups: int, attempt: Callable[[Sequence[Exercise]], Sequence[list[TaskAttempt]]]
    ) -> list[AttemptGroup]:
        """As `play`, with the same errors, but `attempt` plays the exercises, here or in other processes, and returns
        each one's attempts in their order."""
        taking_part = [self._next() for _ in range(num_groups)]
        attempted = attempt([self._exercise(environment) for environment in taking_part])
        groups = [
            AttemptGroup(environment, attempts) for environment, attempts in zip(taking_part, attempted, strict=True)
        ]
        for group in groups:
            self._record(group)
        return [group for group in groups if group.fault is None]

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it is, and the task streams and failures of all environments, as JSON values: what an equal
        continuation needs."""
        return {"turn": self._turn, "environments": self._states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the tasks that follow are the same to the byte."""
        self._turn = int(state["turn"]) % len(self.environments)
        self._saved_states = dict(state["environments"])
        self._restore()

    def _states(self) -> dict[str, Any]:
        return {
            name: {"tasks": one.tasks.state_dict(), "failures": one.failures} for name, one in self.environments.items()
        }

    def _restore(self) -> None:
        for name in self.environments.keys() & self._saved_states.keys():
            environment, state = self.environments[name], self._saved_states[name]
            environment.tasks.load_state_dict(state["tasks"])
            environment.failures = int(state["failures"])

    def _add(self, name: str, curriculum: Curriculum, domain: str, kinds: Sequence[str], max_turns: int) -> None:
        seed = derive(self._seed, Purpose.EPISODES, len(self.environments))
        tasks = TaskStream(curriculum, seed, {domain: kinds}, self._config.held_out_share)
        self.environments[name] = TaskEnvironment(name, domain, tasks, max_turns)

    def _next(self) -> TaskEnvironment:
        """The environment whose turn it is."""
        environments = list(self.environments.values())
        for _ in environments:
            environment = environments[self._turn]
            self._turn = (self._turn + 1) % len(environments)
            if not environment.is_quarantined:
                return environment
        raise EnvironmentFault("every environment is in quarantine; the log says what broke them")

    def _exercise(self, environment: TaskEnvironment) -> Exercise:
        config, (_, task) = self._config, next(environment.tasks)
        return Exercise(task, config.group_size, environment.max_turns, config.max_prompt_tokens)

    def _record(self, group: AttemptGroup) -> None:
        """Tell the curriculum, or count a failure."""
        environment = group.environment
        if group.fault is None:
            environment.failures = 0
            for attempt in group.attempts:
                environment.tasks.curriculum.record(attempt.task.domain, attempt.has_succeeded)
            return
        environment.failures += 1
        outcome = "it is in quarantine" if environment.is_quarantined else "its episodes are dropped"
        log.warning("environment %s: %s; %s", environment.name, group.fault, outcome)

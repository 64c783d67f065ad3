"""The environments of an integrated system: each draws tasks of its domain and has a policy attempt them in groups."""

import logging
from dataclasses import dataclass
from typing import Any

from loomrl.errors import EnvironmentFault
from loomrl.gym.curriculum import Curriculum
from loomrl.gym.integration.config import GymTrainingConfig
from loomrl.gym.integration.dialogue import Answer, Attempt, play
from loomrl.gym.stream import TaskStream
from loomrl.language.tokens import Tokenizer
from loomrl.training.seeds import Purpose, derive

MAX_FAILURES = 3  # broken groups in a row, until an environment is in quarantine

log = logging.getLogger(__name__)


@dataclass
class TaskEnvironment:
    """One environment; `failures` counts its broken groups in a row."""

    name: str
    tasks: TaskStream
    failures: int = 0

    @property
    def is_quarantined(self) -> bool:
        """Whether it takes part no more."""
        return self.failures >= MAX_FAILURES


@dataclass(frozen=True)
class Group:
    """Attempts of one environment at one task."""

    environment: TaskEnvironment
    attempts: list[Attempt]

    @property
    def fault(self) -> EnvironmentFault | None:
        """What broke an attempt, if anything did: then the group is worth nothing."""
        return next((attempt.fault for attempt in self.attempts if attempt.fault), None)

    @property
    def version(self) -> int:
        """Of the oldest policy that took part."""
        return min(attempt.dialogue.version or 0 for attempt in self.attempts)

    def to_wire(self, env_id: int) -> dict[str, Any]:
        """The group as a hub takes it."""
        dialogues = [attempt.dialogue for attempt in self.attempts]
        return {
            "tokens": [dialogue.tokens for dialogue in dialogues],
            "masks": [dialogue.masks for dialogue in dialogues],
            "inference_logprobs": [dialogue.log_probs for dialogue in dialogues],
            "scores": [attempt.score for attempt in self.attempts],
            "env_id": env_id,
        }


class EnvironmentPool:
    """Environments that take turns; the same seed gives the same tasks.

    Args:
        config: domains, number of environments, curriculum, limits of an episode.
        tokenizer: of the policy.
        seed: of all tasks.
    """

    def __init__(self, config: GymTrainingConfig, tokenizer: Tokenizer, seed: int) -> None:
        self._config, self._tokenizer = config, tokenizer
        self.curricula = {name: Curriculum(config.curriculum(), [name]) for name in config.domains}
        self.environments: dict[str, TaskEnvironment] = {}
        for number in range(config.environments_per_type):
            for domain in config.domains:
                self._add(domain, number, derive(seed, Purpose.EPISODES, len(self.environments)))
        self._turn = 0

    @property
    def quarantined(self) -> list[str]:
        """The names of environments that take part no more."""
        return [name for name, one in self.environments.items() if one.is_quarantined]

    @property
    def difficulties(self) -> dict[str, float]:
        """Of each domain, in levels."""
        return {name: curriculum.difficulty(name) for name, curriculum in self.curricula.items()}

    def play(self, num_groups: int, answer: Answer) -> list[Group]:
        """Have `num_groups` tasks attempted; returns those groups that did not break.

        Raises:
            EnvironmentFault: when all environments are in quarantine.
        """
        groups = [self._begin(self._next()) for _ in range(num_groups)]
        play([attempt for group in groups for attempt in group.attempts], answer)
        for group in groups:
            self._record(group)
        return [group for group in groups if group.fault is None]

    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, JSON values."""
        environments = {
            name: {"tasks": one.tasks.state_dict(), "failures": one.failures} for name, one in self.environments.items()
        }
        return {"turn": self._turn, "environments": environments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the tasks that follow are the same to the byte."""
        self._turn = int(state["turn"])
        for name, one in self.environments.items():
            one.tasks.load_state_dict(state["environments"][name]["tasks"])
            one.failures = int(state["environments"][name]["failures"])

    def _add(self, domain: str, number: int, seed: int) -> None:
        kinds = {domain: self._config.kinds_of(domain)}
        tasks = TaskStream(self.curricula[domain], seed, kinds, self._config.held_out_share)
        name = f"{domain}-{number}"
        self.environments[name] = TaskEnvironment(name, tasks)

    def _next(self) -> TaskEnvironment:
        """The environment whose turn it is."""
        environments = list(self.environments.values())
        for _ in environments:
            environment = environments[self._turn]
            self._turn = (self._turn + 1) % len(environments)
            if not environment.is_quarantined:
                return environment
        raise EnvironmentFault("every environment is in quarantine; the log says what broke them")

    def _begin(self, environment: TaskEnvironment) -> Group:
        config, (_, task) = self._config, next(environment.tasks)
        limits = config.max_turns, config.max_prompt_tokens
        return Group(environment, [Attempt(task, self._tokenizer, *limits) for _ in range(config.group_size)])

    def _record(self, group: Group) -> None:
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

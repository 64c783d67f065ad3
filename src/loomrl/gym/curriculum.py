"""Difficulty that follows a measured success rate, for each domain by itself, and sampling across domains.

A domain's difficulty is a number between two levels; tasks are drawn from both, in proportion. It moves a step when the
success rate of a whole window is out of the band around the target, and then the window begins anew: inside the band
nothing moves, so difficulty does not swing with chance. Stages are harder to enter and to leave than steps are to take.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from loomrl.errors import ArtifactError, ConfigError
from loomrl.gym.tasks import NUM_LEVELS
from loomrl.system.schema import Section


class CurriculumConfig(Section):
    """How difficulty follows success.

    `margin` is half the width of the band around `target_success_rate`; `window` the number of answers a decision looks
    at; `step` what difficulty moves by, in levels; `stages` the levels at which stages begin; `weights` how often
    domains are drawn, 1 where they are not named; `first_levels` a domain's easiest level, `first_level` where it is
    not named: levels of different domains are not equally hard.
    """

    target_success_rate: float = Field(default=0.8, gt=0.0, lt=1.0)
    margin: float = Field(default=0.1, gt=0.0, lt=0.5)
    window: int = Field(default=40, ge=1)
    step: float = Field(default=0.25, gt=0.0, le=1.0)
    first_level: int = Field(default=0, ge=0, lt=NUM_LEVELS)
    last_level: int = Field(default=NUM_LEVELS - 1, ge=0, lt=NUM_LEVELS)
    stages: tuple[int, ...] = (3, 6)
    weights: dict[str, float] = Field(default_factory=dict)
    first_levels: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_possible(self) -> "CurriculumConfig":
        if self.first_level > self.last_level:
            raise ValueError(f"first_level {self.first_level} is above last_level {self.last_level}")
        if outside := [
            name for name, level in self.first_levels.items() if not self.first_level <= level <= self.last_level
        ]:
            raise ValueError(f"first_levels: {outside[0]} is not between first_level and last_level")
        if list(self.stages) != sorted(set(self.stages)):
            raise ValueError(f"stages {list(self.stages)} must increase")
        if any(not weight >= 0.0 or math.isinf(weight) for weight in self.weights.values()):
            raise ValueError("weights must be finite and not below 0")
        return self


@dataclass
class _Progress:
    """Where a domain stands: its difficulty, the window's outcomes, and windows in a row that ask for another stage."""

    difficulty: float
    outcomes: list[bool] = field(default_factory=list)
    knocks: int = 0


_KNOCKS = 2  # windows in a row that it takes to enter the next stage, or to fall back from one


class Curriculum:
    """Draws domains and levels, and learns from the outcomes.

    Raises:
        ConfigError: where there is no domain, or a weight for one there is not, or none has a weight above 0.
    """

    def __init__(self, config: CurriculumConfig, domains: Sequence[str]) -> None:
        self._config, self._domains = config, list(dict.fromkeys(domains))
        for setting, named in (("weights", config.weights), ("first_levels", config.first_levels)):
            if unknown := sorted(named.keys() - set(self._domains)):
                raise ConfigError(
                    f"curriculum.{setting} names {unknown[0]!r}; the domains are: {', '.join(self._domains)}"
                )
        self._weights = np.array([config.weights.get(name, 1.0) for name in self._domains])
        if not self._weights.sum() > 0.0:
            raise ConfigError("curriculum: no domain has a weight above 0; name one, or raise its weight")
        self._lowest = {name: float(config.first_levels.get(name, config.first_level)) for name in self._domains}
        self._progress = {name: _Progress(lowest) for name, lowest in self._lowest.items()}

    def draw(self, rng: np.random.Generator) -> tuple[str, int]:
        """The name of a domain, drawn by its weight, and a whole level, drawn by its difficulty."""
        name = self._domains[int(rng.choice(len(self._domains), p=self._weights / self._weights.sum()))]
        lower = math.floor(self._progress[name].difficulty)
        return name, lower + int(rng.random() < self._progress[name].difficulty - lower)

    def record(self, domain: str, succeeded: bool) -> None:
        """Take the outcome of a task; at a window's end difficulty may move. KeyError for a domain there is not."""
        progress, config = self._progress[domain], self._config
        progress.outcomes.append(bool(succeeded))
        if len(progress.outcomes) < config.window:
            return
        rate = sum(progress.outcomes) / len(progress.outcomes)
        if abs(rate - config.target_success_rate) <= config.margin + 1e-9:
            progress.outcomes.pop(0)
            progress.knocks = 0
            return
        progress.outcomes.clear()
        self._move(domain, config.step if rate > config.target_success_rate else -config.step)

    def difficulty(self, domain: str) -> float:
        """The difficulty a domain is at, in levels, such as 2.25. KeyError for a domain there is not."""
        return self._progress[domain].difficulty

    def stage(self, domain: str) -> int:
        """The number of the stage a domain is in, from 0. KeyError for a domain there is not."""
        return self._stage_at(self._progress[domain].difficulty)

    def metrics(self) -> dict[str, float]:
        """`DOMAIN/difficulty`, in levels, `DOMAIN/stage`, and `DOMAIN/success_rate`, 0 to 1, of the running window;
        left out where it has no outcome yet."""
        found: dict[str, float] = {}
        for name, progress in self._progress.items():
            found |= {f"{name}/difficulty": progress.difficulty, f"{name}/stage": float(self.stage(name))}
            if progress.outcomes:
                found[f"{name}/success_rate"] = sum(progress.outcomes) / len(progress.outcomes)
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs, as JSON values."""
        return {
            name: {**vars(progress), "outcomes": list(progress.outcomes)} for name, progress in self._progress.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ArtifactError: when it is of other domains, or no state at all; nothing has changed then.
        """
        if set(state) != set(self._domains):
            raise ArtifactError(
                f"the curriculum's state is of {sorted(state)}, its domains are {sorted(self._domains)}"
            )
        try:
            self._progress = {
                name: _Progress(
                    float(one["difficulty"]), [bool(outcome) for outcome in one["outcomes"]], int(one["knocks"])
                )
                for name, one in state.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"not the state of a curriculum: {error!r}; take one from `state_dict`") from error

    def _move(self, domain: str, step: float) -> None:
        progress = self._progress[domain]
        wanted = min(max(progress.difficulty + step, self._lowest[domain]), float(self._config.last_level))
        if self._stage_at(wanted) == self._stage_at(progress.difficulty):
            progress.difficulty, progress.knocks = wanted, 0
            return
        knock = 1 if step > 0 else -1
        progress.knocks = progress.knocks + knock if progress.knocks * knock > 0 else knock
        if abs(progress.knocks) >= _KNOCKS:
            progress.difficulty, progress.knocks = wanted, 0

    def _stage_at(self, difficulty: float) -> int:
        return sum(difficulty >= level for level in self._config.stages)

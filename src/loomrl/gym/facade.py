"""`LoomRLGym`: awaited environments over the domains, with the four values of a `step` that users expect.

The only place where `done` exists; `info` says whether it is `terminated` or `truncated`. What a domain does, such as
running code, it does in a thread, so that one environment never holds up another.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from loomrl.errors import ConfigError
from loomrl.gym.domains import get_environment, names
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.registered import AwaitedEnvironment, RegisteredEnvironment
from loomrl.system.schema import Section, first_problem


class EnvironmentType(Enum):
    """The names of the domains that come with LoomRL."""

    MATH = "math"
    GAME = "game"
    TOOLCALL = "tool_call"
    CODE = "code"
    LANGUAGE = "language"
    MULTIMODAL = "multimodal"


class GymEnvironmentConfig(Section):
    """What `create_environment` takes: a level from 0 to 9 or its name, a limit on steps, and kinds of tasks, all where
    none is named."""

    difficulty: int | str = "beginner"
    max_steps: int = Field(default=50, ge=1)
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TaskState:
    """What a policy sees: a text to answer, messages it may choose from, and the picture of a task that has one."""

    text: str
    choices: tuple[str, ...]
    picture: NDArray[np.uint8] | None  # (height, width, 3)
    domain: str
    kind: str
    difficulty: int  # a level, 0 to 9


class GymEnvironment(AwaitedEnvironment):
    """One environment of a `LoomRLGym` over a domain, made as `config` says."""

    _environment: DomainEnvironment

    def __init__(self, name: str, environment: DomainEnvironment, seed: int, config: GymEnvironmentConfig) -> None:
        super().__init__(name, environment, seed)
        self.config = config

    @property
    def domain(self) -> str:
        """The name of the environment's domain."""
        return self._environment.domain.name

    async def reset(self, seed: int | None = None, difficulty: int | str | None = None) -> TaskState:
        """Begin an episode, of another difficulty where one is given. The first one is seeded by the gym's seed.

        Raises:
            ConfigError: for a level there is not.
            EnvironmentFault: where the code that makes the task breaks.
        """
        _, info = await self._begin(seed, options=None if difficulty is None else {"difficulty": difficulty})
        return self._state(info)

    async def step(self, action: int | str) -> tuple[TaskState, float, bool, dict[str, Any]]:
        """Send a message: a text, or the number of one of `state.choices`.

        Returns:
            The next state, the reward, whether the episode is over, and `info` with `terminated`, `truncated` and
            `rewards` by component.

        Raises:
            ConfigError: for a number that no choice has.
            EnvironmentFault: when no episode runs.
        """
        async with self._lock:
            message = action if isinstance(action, str) else self._chosen(action)
            _, reward, terminated, truncated, info = await asyncio.to_thread(self._environment.send, message)
            told = {"terminated": terminated, "truncated": truncated, "rewards": dict(info["rewards"])}
            return self._state(info), reward, terminated or truncated, told

    def _chosen(self, action: int) -> str:
        offered = self._environment.offered
        if not isinstance(action, int | np.integer) or not 0 <= action < len(offered):
            raise ConfigError(f"{self.name}: action {action!r} is no choice; there are {len(offered)}, or send a text")
        return offered[int(action)]

    def _state(self, info: Mapping[str, Any]) -> TaskState:
        about = {name: info[name] for name in ("domain", "kind", "difficulty")}
        return TaskState(info["text"], tuple(info["choices"]), self._environment.task.picture, **about)


class LoomRLGym:
    """Makes environments and keeps them in `environments`, by name. `seed` makes all that they draw repeatable."""

    def __init__(self, seed: int = 0) -> None:
        self.environments: dict[str, GymEnvironment | RegisteredEnvironment] = {}
        self._seed = seed

    @overload
    async def create_environment(
        self, environment_type: EnvironmentType, config: Mapping[str, Any] | None = None
    ) -> GymEnvironment: ...

    @overload
    async def create_environment(self, environment_type: str, config: Mapping[str, Any] | None = None) -> Any: ...

    async def create_environment(
        self, environment_type: EnvironmentType | str, config: Mapping[str, Any] | None = None
    ) -> GymEnvironment | RegisteredEnvironment:
        """Make an environment of a domain, one of LoomRL's or another's by its name; or one that was registered by
        `register_environment` or with Gymnasium, whose constructor `config` goes to.

        Raises:
            ConfigError: when nothing has that name, or for a key or value that is not taken.
            EnvironmentFault: when the constructor of a registered environment fails.
            ServiceError: when LoomDB, which has the names that are registered, cannot be reached.
        """
        named = environment_type.value if isinstance(environment_type, EnvironmentType) else environment_type
        number = len(self.environments)
        name, seed = f"{named}-{number}", self._seed + number
        made: GymEnvironment | RegisteredEnvironment
        if named in names():
            settings = _read(config or {})
            make = await asyncio.to_thread(get_environment, named)
            environment = await asyncio.to_thread(make, mode="choice", **settings.model_dump())
            made = GymEnvironment(name, environment, seed, settings)
        else:
            made = await asyncio.to_thread(_registered, name, named, config or {}, seed)
        self.environments[name] = made
        return made

    async def close(self) -> None:
        """Close all environments of the gym, and what their running episodes hold."""
        for environment in self.environments.values():
            await environment.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _registered(name: str, named: str, kwargs: Mapping[str, Any], seed: int) -> RegisteredEnvironment:
    try:
        return RegisteredEnvironment(name, named, kwargs, seed)
    except ConfigError as error:
        raise ConfigError(f"create_environment: {error}; the domains are: {', '.join(names())}") from error


def _read(config: Mapping[str, Any]) -> GymEnvironmentConfig:
    try:
        return GymEnvironmentConfig.model_validate(dict(config))
    except ValidationError as error:
        allowed = ", ".join(GymEnvironmentConfig.model_fields)
        raise ConfigError(f"create_environment: {first_problem(error)}; the config takes: {allowed}") from error

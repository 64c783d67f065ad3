"""Awaited environments of any kind: registered in LoomDB, or Gymnasium's, with the four values of a `step`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import construct
from loomrl.environment.resolve import resolve


class AwaitedEnvironment:
    """One environment of a `LoomRLGym`. Calls wait for each other, and what they do is done in a thread."""

    def __init__(self, name: str, environment: Any, seed: int) -> None:
        self.name, self._environment = name, environment
        self._first_seed: int | None = seed
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the environment, with what a running episode holds, such as windows and files."""
        async with self._lock:
            await asyncio.to_thread(self._environment.close)

    async def _begin(self, seed: int | None, **options: Any) -> tuple[Any, dict[str, Any]]:
        """What a reset returns. The first one is seeded by the gym's seed."""
        async with self._lock:
            seeded = self._first_seed if seed is None else seed
            begun: tuple[Any, dict[str, Any]] = await asyncio.to_thread(self._environment.reset, seed=seeded, **options)
            self._first_seed = None
            return begun


class RegisteredEnvironment(AwaitedEnvironment):
    """One environment of a `LoomRLGym`, by the name it was registered under.

    Raises:
        ConfigError: when nothing has that name, or its constructor does not take `kwargs`.
        EnvironmentFault: when its constructor fails.
        ServiceError: when LoomDB cannot be reached.
    """

    def __init__(self, name: str, registered_name: str, kwargs: Mapping[str, Any], seed: int) -> None:
        definition = resolve(EnvironmentConfig(id=registered_name, kwargs=dict(kwargs)), Path.cwd())
        super().__init__(name, construct(definition), seed)
        self.observation_space = self._environment.observation_space
        self.action_space = self._environment.action_space

    async def reset(self, seed: int | None = None) -> Any:
        """Begin an episode; returns what is observed. The first one is seeded by the gym's seed.

        Raises:
            EnvironmentFault: when the environment breaks its API.
        """
        state, _ = await self._begin(seed)
        return state

    async def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Take a step.

        Returns:
            What is observed, the reward, whether the episode is over, and what the environment tells, with `terminated`
            and `truncated`.

        Raises:
            EnvironmentFault: when the environment breaks its API, or no episode runs.
        """
        async with self._lock:
            state, reward, terminated, truncated, info = await asyncio.to_thread(self._environment.step, action)
            told = {**info, "terminated": bool(terminated), "truncated": bool(truncated)}
            return state, float(reward), bool(terminated or truncated), told

"""Any environments, each in a process of its own, observations in shared memory: for those that are slow to step."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from loomrl.environment.vector.arguments import seed_list
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import EnvironmentFault

IS_EXACT = True
TIMEOUT_SECONDS = 60.0  # after which an environment that does not answer counts as hung

_Result = TypeVar("_Result")
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "ProcessesVectorEnv":
    """One process for each environment. They are started afresh: a fork would inherit locks that threads hold."""
    return ProcessesVectorEnv(recipe, num_envs, mode)


class ProcessesVectorEnv(AsyncVectorEnv):
    """`AsyncVectorEnv` whose workers may die or hang: both are named within `timeout_seconds`, and all are ended."""

    def __init__(
        self, recipe: Recipe, num_envs: int, mode: AutoresetMode, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._name, self.timeout_seconds = recipe.definition.name, timeout_seconds
        super().__init__([recipe.make_elsewhere] * num_envs, shared_memory=True, context="spawn", autoreset_mode=mode)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`.

        Raises:
            EnvironmentFault: when one fails, dies or does not answer in time.
        """
        seeds = seed_list(self.num_envs, seed)

        def reset() -> tuple[Any, dict[str, Any]]:
            self.reset_async(seed=seeds, options=dict(options) if options else None)
            return self.reset_wait(self.timeout_seconds)

        return self._answered("reset", reset)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments.

        Raises:
            EnvironmentFault: when one fails, dies or does not answer in time.
        """

        def step() -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            self.step_async(actions)
            return self.step_wait(self.timeout_seconds)

        return self._answered("step", step)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """As the parent class, but tell of no worker's error twice: the fault says what there is to say."""
        failed = [success for success in successes if not success]
        errors = [self.error_queue.get(timeout=self.timeout_seconds) for _ in failed]
        if not errors:
            return
        index, kind, value, _ = min(errors, key=lambda error: int(error[0]))
        if issubclass(kind, EnvironmentFault):  # the guard's, which names the environment
            raise self._end(str(value))
        raise self._end(f"{self._which([index])} raised {kind.__name__}: {value}")

    def _answered(self, method: str, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except multiprocessing.TimeoutError as error:
            raise self._end(f"{self._silent()} did not answer `{method}` within {self.timeout_seconds:g} s") from error
        except _GONE as error:
            raise self._end(f"{self._dead()} during `{method}`") from error

    def _silent(self) -> str:
        ready = set(wait(self.parent_pipes, timeout=0))
        return self._which([index for index, pipe in enumerate(self.parent_pipes) if pipe not in ready])

    def _dead(self) -> str:
        for process in self.processes:
            process.join(timeout=1.0 if process.is_alive() else 0.0)
        codes = {index: process.exitcode for index, process in enumerate(self.processes) if process.exitcode}
        how = {_how(code) for code in codes.values() if code is not None} or {"died"}
        return f"{self._which(list(codes))} {', '.join(sorted(how))}"

    def _which(self, indices: list[int]) -> str:
        shown = ", ".join(map(str, indices)) or "one"
        return f"environment {self._name!r}: number {shown} of {self.num_envs}"

    def _end(self, what: str) -> EnvironmentFault:
        self._state = AsyncState.DEFAULT
        self.close(terminate=True)
        return EnvironmentFault(f"{what}; all its processes were ended")


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended its process with code {code}"

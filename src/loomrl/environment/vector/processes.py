"""Any environments, each in a process of its own, observations in shared memory: for those that are slow to step.

A worker says when it has made its environment and when it has closed it. So its constructor and `close` have a time
limit as `reset` and `step` have, and whoever dies or hangs there is named as well. The constructor of the environment
that is made in this process, for its spaces, has no limit.
"""

import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from loomrl.environment.vector.arguments import Options, Seeds, demand_actions, seed_list
from loomrl.environment.vector.episodes import SavedByActions
from loomrl.environment.vector.infos import UncutInfos
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import EnvironmentFault, LoomRLError

IS_EXACT = True
GRACE_SECONDS = 5.0  # for processes to end by themselves, and then after SIGTERM, before they are killed

_Result = TypeVar("_Result")
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "ProcessesVectorEnv":
    """One process for each environment. They are started afresh: a fork would inherit locks that threads hold.

    Raises:
        EnvironmentFault: when a process dies, or has not made its environment in time.
    """
    kind = ResumableProcesses if recipe.is_resumable else ProcessesVectorEnv
    return kind(recipe, num_envs, mode)


class ProcessesVectorEnv(UncutInfos, AsyncVectorEnv):
    """`AsyncVectorEnv` whose workers may die or hang, whatever they are doing: they are named, and all are ended.

    `timeout_seconds`, at first the recipe's, is how long they have for an answer. Spaces are those of one environment
    that is made in this process.
    """

    def __init__(self, recipe: Recipe, num_envs: int, mode: AutoresetMode) -> None:
        self._name, self.timeout_seconds = recipe.definition.name, recipe.timeout_seconds
        makers = [recipe.make_elsewhere] * num_envs
        super().__init__(makers, shared_memory=True, context="spawn", worker=work, autoreset_mode=mode)

    def _check_spaces(self) -> None:
        """What the parent class's constructor ends with: here the workers' first answers are waited for."""
        self._demand_spaces(self._answered("__init__", self._answers))

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`: observations (B, *obs), and the info.

        Raises:
            ConfigError: for a list of seeds of another length.
            EnvironmentFault: when one fails, dies or does not answer in time.
        """
        seeds = seed_list(self.num_envs, seed)

        def reset() -> tuple[Any, dict[str, Any]]:
            self.reset_async(seed=seeds, options=dict(options) if options else None)
            return self.reset_wait(self.timeout_seconds)

        return self._answered("reset", reset)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments: observations (B, *obs), rewards, terminated, truncated (B,), and the info.

        Raises:
            EnvironmentFault: for actions of another shape or kind; when one fails, dies or does not answer in time.
        """
        demand_actions(actions, self.single_action_space, self.num_envs, self._name)

        def step() -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            self.step_async(actions)
            return self.step_wait(self.timeout_seconds)

        return self._answered("step", step)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment.

        Raises:
            EnvironmentFault: when one fails, dies or does not answer in time.
        """
        return self._answered(name, lambda: self._call(name))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute, a value for each environment.

        Raises:
            EnvironmentFault: when one fails, dies or does not answer in time.
        """

        def send() -> None:
            for pipe, value in zip(self.parent_pipes, values, strict=True):
                pipe.send(("_setattr", (name, value)))
            self._answers()

        self._answered(name, send)

    def _call(self, name: str) -> tuple[Any, ...]:
        self.call_async(name)
        return self.call_wait(self.timeout_seconds)

    def renew(self) -> None:
        """Close all environments and make new ones in the same processes: without the start of Python and its imports.

        What an environment keeps outside its instance stays, as where environments are made anew in one process.

        Raises:
            EnvironmentFault: when one fails, dies or does not answer in time.
        """
        self._answered("close", lambda: self._call("close_current"))
        self._demand_spaces(self._answered("__init__", lambda: self._call("make_next")))

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: ARG002
        """Close the environments and end their processes; with `terminate`, end these without more ado.

        Raises:
            EnvironmentFault: when an environment's `close` fails, dies or does not return in time.
        """
        interrupted = self._state is not AsyncState.DEFAULT  # in a call: nobody waits for its answers any more
        if not (terminate or interrupted):
            self._answered("close", self._close_environments)
        self._end_processes(at_once=terminate or interrupted)
        for pipe in self.parent_pipes:
            pipe.close()

    # --- workers ---

    def _close_environments(self) -> None:
        for pipe in self.parent_pipes:
            pipe.send(("close", None))
        self._answers()  # understood
        self._answers()  # done

    def _answers(self) -> list[Any]:
        """The next answer of every worker."""
        if not self._poll_pipe_envs(self.timeout_seconds):
            raise multiprocessing.TimeoutError
        answers, successes = zip(*[pipe.recv() for pipe in self.parent_pipes], strict=True)
        self._raise_if_errors(successes)
        return list(answers)

    def _end_processes(self, at_once: bool) -> None:
        """Have no process left, whatever it is doing, and whichever signals it ignores."""
        if not at_once:
            self._join()
        for end in (BaseProcess.terminate, BaseProcess.kill):
            alive = [process for process in self.processes if process.is_alive()]
            for process in alive:
                end(process)
            if alive:
                self._join()

    def _join(self) -> None:
        until = time.monotonic() + GRACE_SECONDS
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))

    # --- faults ---

    def _demand_spaces(self, found: Iterable[Any]) -> None:
        wanted = (self.single_observation_space, self.single_action_space)
        if others := [index for index, spaces in enumerate(found) if spaces != wanted]:
            raise self._end(
                f"{self._which(others)} has other spaces than the one made before it: {wanted[0]}, {wanted[1]}; "
                "let them follow from environment.kwargs alone"
            )

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """As the parent class, but tell of no worker's error twice: the fault says what there is to say."""
        failed = [index for index, success in enumerate(successes) if not success]
        if not failed:
            return
        try:
            errors = [self.error_queue.get(timeout=self.timeout_seconds) for _ in failed]
        except queue.Empty:  # what cannot be pickled does not arrive
            raise self._end(f"{self._which(failed)} failed, and its error could not be sent") from None
        index, kind, value, _ = min(errors, key=lambda error: int(error[0]))
        if kind is None:
            raise self._end(f"{self._which([index])}: {value}")
        if issubclass(kind, EnvironmentFault):  # the guard's, which names the environment
            raise self._end(f"{value} (number {index} of {self.num_envs})")
        raise self._end(f"{self._which([index])} raised {kind.__name__}: {value}")

    def _answered(self, method: str, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except multiprocessing.TimeoutError as error:
            fault = self._end(f"{self._silent()} did not answer `{method}` within {self.timeout_seconds:g} s")
            raise EnvironmentFault(f"{fault}; if it is slow only, raise environment.timeout_seconds") from error
        except _GONE as error:
            raise self._end(f"{self._dead()} during `{method}`") from error

    def _silent(self) -> str:
        ready = set(wait(self.parent_pipes, timeout=0))
        return self._which([index for index, pipe in enumerate(self.parent_pipes) if pipe not in ready])

    def _dead(self) -> str:
        """Who ended, and how. A pipe may break a moment before the process has ended, and during `close` others end
        as they should."""
        until = time.monotonic() + 1.0
        while not any(process.exitcode for process in self.processes) and time.monotonic() < until:
            time.sleep(0.01)
        codes = {index: process.exitcode for index, process in enumerate(self.processes)}
        codes = {index: code for index, code in codes.items() if code} or codes
        how = {_how(code) for code in codes.values() if code is not None} or {"died"}
        return f"{self._which([index for index, code in codes.items() if code is not None])} {', '.join(sorted(how))}"

    def _which(self, indices: list[int]) -> str:
        shown = ", ".join(map(str, indices)) or "one"
        return f"environment {self._name!r}: number {shown} of {self.num_envs}"

    def _end(self, what: str) -> EnvironmentFault:
        self._state = AsyncState.DEFAULT
        self.close(terminate=True)
        return EnvironmentFault(f"{what}; all its processes were ended")


class ResumableProcesses(SavedByActions, ProcessesVectorEnv):
    """Environments in processes, whose episodes can be saved and resumed."""


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended its process with code {code}"


# --- in the worker's process --------------------------------------------------------------------------------------


class WorkerEnvironment(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment of a worker, which can be made anew. Why `close` failed is kept, for the worker to tell."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        self._make = make
        self.failure: Exception | None = None
        super().__init__(make())

    def close_current(self) -> None:
        """Close the environment, before another one is made.

        Raises:
            EnvironmentFault: with what it raised in words: other processes may not have that class.
        """
        try:
            self.env.close()
        except Exception as error:  # noqa: BLE001 - an environment may raise anything
            raise EnvironmentFault(f"`close` raised {type(error).__name__}: {error}") from None

    def make_next(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Make another environment; returns its observation and action space, and raises what making it raises."""
        self.env = self._make()
        return self.env.observation_space, self.env.action_space

    def close(self) -> None:
        """Close the environment for good; what it raises is kept in `failure`."""
        try:
            self.env.close()
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = error


def work(
    index: int,
    make: Callable[[], gymnasium.Env[Any, Any]],
    pipe: Connection,
    parent_pipe: Connection,
    memory: Any,
    errors: Any,
    *rest: Any,
) -> None:
    """What the process of a worker runs: Gymnasium's worker, with its arguments, between two more answers.

    They are the spaces, when the environment was made, and that it was closed. An error is sent, too, and not raised.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; whoever started the workers ends them
    parent_pipe.close()

    def answer(value: Any, method: str, failure: Exception | None) -> None:
        if isinstance(failure, LoomRLError):
            errors.put((index, EnvironmentFault, str(failure), ""))
        elif failure is not None:  # by its name alone: the other process may not have the class
            errors.put((index, None, f"`{method}` raised {type(failure).__name__}: {failure}", ""))
        pipe.send((value, failure is None))

    try:
        env = WorkerEnvironment(make)
    except Exception as error:  # noqa: BLE001 - as above
        answer(None, "__init__", error)
        return
    answer((env.observation_space, env.action_space), "__init__", None)
    _async_worker(index, lambda: env, pipe, parent_pipe, memory, errors, *rest)
    with suppress(*_GONE):  # whoever ends the workers waits for no answer
        answer(None, "close", env.failure)

"""Compiled environment dynamics: what a kernel needs to step an environment without Python.

A `Dynamics` is two functions of one uniform signature, compiled ahead of their first call and kept on disk:

    step(state (S,) float64, action (A,) float64, parameters (P,) float64) -> (reward float64, terminated bool)
    observe(state (S,) float64, obs (O,) float32) -> None

`step` changes `state` in place. `step_signature` and `observe_signature` are those signatures.

A kernel names `step` and `observe` like globals and is compiled for one environment by `specialise`, so they are
inlined. They are not passed as arguments: a call of a kernel with first-class functions takes some 80 µs of
unwrapping, each call through the pointer 45 ns, and a kernel over the functions' own types is not cached at all.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.vector.by_module import written_for
from loomrl.system.machine_code import njit
from loomrl.types import FloatArray

step_signature = "Tuple((float64, boolean))(float64[::1], float64[::1], float64[::1])"
observe_signature = "void(float64[::1], float32[::1])"


@dataclass(frozen=True)
class Dynamics:
    """An environment's dynamics as compiled functions, equal to those of the Gymnasium class at `entry_point`.

    Sizes are S = `state_dim`, O = `obs_dim` and A, of the action space: 1 for discrete actions, counted from 0.
    """

    entry_point: str
    state_dim: int
    obs_dim: int
    parameters: Callable[[gymnasium.Env[Any, Any]], FloatArray]  # (P,) float64, read off a constructed environment
    reset_states: Callable[[np.random.Generator, int], FloatArray]  # (count, S): what as many resets in a row draw
    step: Any  # compiled, of step_signature
    observe: Any  # compiled, of observe_signature


def find_dynamics(entry_point: str) -> Dynamics | None:
    """The dynamics of an entry point, from the file in `classic/` that is named like its module; None without one."""
    return written_for(entry_point, "classic", Dynamics)


def compiled(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compile for one signature when the module is loaded, or take it from the cache on disk.

    Arithmetic is IEEE's as Gymnasium's is: nothing is reassociated or fused, and division by zero gives infinity.
    """
    return njit(signature, **options)


def specialise(kernel: FunctionType, signature: Any, **functions: Any) -> Any:
    """Compile a kernel with compiled functions in the place of the globals of their names.

    They are inlined. The cache on disk is named after the sources of those functions, because the compiler's own
    looks at the kernel's file only and would not see that theirs changed.

    Example: `specialise(_rollout, signature, step=dynamics.step, observe=dynamics.observe)`.
    """
    sources = sorted({Path(function.py_func.__code__.co_filename) for function in functions.values()})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    clone = FunctionType(kernel.__code__, {**kernel.__globals__, **functions}, kernel.__name__, kernel.__defaults__)
    names = "_".join(path.stem for path in sources)
    clone.__qualname__ = f"{kernel.__qualname__}.{names}.{digest[:16]}"
    clone.__module__ = kernel.__module__
    return compiled(signature)(clone)


def attributes(*names: str) -> Callable[[gymnasium.Env[Any, Any]], FloatArray]:
    """A function that reads parameters (P,) off an environment: its attributes of these names, in their order."""

    def parameters(env: gymnasium.Env[Any, Any]) -> FloatArray:
        return np.array([getattr(env.unwrapped, name) for name in names], np.float64)

    return parameters

"""A thin wrapper that stops an environment's fault where it happens."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from loomrl.errors import EnvironmentFault, LoomRLError


class EnvironmentGuard(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises `EnvironmentFault` naming environment, step and key when the Gymnasium API is broken.

    Checked on every reset and step: a tuple of the right length, an observation of the declared structure, shape
    and dtype with finite values, a finite scalar reward, boolean flags, a dict of information. Bounds are not
    checked here, because a finite value outside them harms nobody silently; `loomrl env check` reports it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        self._step = 0
        self._seed: int | None = None
        self._observation_is_valid = _validator(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """What the environment's reset returns, checked.

        Raises:
            EnvironmentFault: when it raises, or returns other than a pair whose observation is in the space.
        """
        self._step, self._seed = 0, seed
        try:
            result = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._raised("reset", error) from error
        if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], dict):
            raise self._fault(f"reset returned {_shape_of(result)}; it must return (observation, info: dict)")
        if not is_valid(result[0], self.env.observation_space):
            raise self._fault(explain("observation", result[0], self.env.observation_space))
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """What the environment's step returns, checked.

        Raises:
            EnvironmentFault: when it raises, returns other than five values, an observation that is not in the space,
                a reward or cost that is not finite, or flags that are not bool.
        """
        self._step += 1
        try:
            result = self.env.step(action)
        except Exception as error:
            raise self._raised("step", error) from error
        try:
            observation, reward, terminated, truncated, info = result
            valid = (
                isfinite(reward)
                and self._observation_is_valid(observation)
                and terminated in _FLAGS
                and truncated in _FLAGS
                and info.__class__ is dict
            )
        except (AttributeError, TypeError, ValueError, RuntimeWarning):
            valid = False
        if not valid:
            self._explain_step(result)
        elif "cost" in info and not _is_finite_number(info["cost"]):
            raise self._fault(f'info["cost"] is {info["cost"]!r}; what a step costs is a finite number')
        return result

    def _explain_step(self, result: Any) -> None:
        """Raise for what is wrong; return where the fast test was merely too strict."""
        if not isinstance(result, tuple) or len(result) != 5:
            wanted = "(observation, reward, terminated, truncated, info)"
            raise self._fault(f"step returned {_shape_of(result)}; it must return {wanted}")
        observation, reward, terminated, truncated, info = result
        if not is_valid(observation, self.env.observation_space):
            raise self._fault(explain("observation", observation, self.env.observation_space))
        if not np.isscalar(reward) and np.ndim(reward) != 0:
            raise self._fault(f"reward has shape {np.shape(reward)}; it must be one number")
        if not isinstance(reward, int | float | np.number | np.ndarray):
            raise self._fault(f"reward is {reward!r} of type {type(reward).__name__}; it must be a number")
        if not isfinite(reward):
            raise self._fault(f"reward is {reward}; it must be finite")
        for key, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_ | int):
                raise self._fault(f"{key} is {flag!r} of type {type(flag).__name__}; it must be a bool")
        if not isinstance(info, dict):
            raise self._fault(f"info is of type {type(info).__name__}; it must be a dict")

    def _fault(self, what: str) -> EnvironmentFault:
        place = "reset" if self._step == 0 else f"step {self._step}"
        return EnvironmentFault(f"environment {self._name!r}, {place} (episode's reset seed {self._seed}): {what}")

    def _raised(self, method: str, error: Exception) -> LoomRLError:
        if isinstance(error, LoomRLError):
            return error
        return self._fault(f"{method} raised {type(error).__name__}: {error}")


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and isfinite(value)


_FLAGS = (False, True)  # equality, so that numpy's own booleans pass


def is_valid(value: Any, space: spaces.Space[Any]) -> bool:
    """Whether a value has the structure, shape and dtype of a space and is finite; any object may be asked about."""
    with np.errstate(invalid="ignore"):
        try:
            return _validator(space)(value)
        except (AttributeError, TypeError, ValueError):
            return False


_SHORT = 20


def _validator(space: spaces.Space[Any]) -> Callable[[Any], bool]:
    """A fast test of one observation, specialised for the space."""
    match space:
        case spaces.Box():
            return _box_validator(space)
        case spaces.Tuple():
            parts = tuple(_validator(part) for part in space.spaces)
            return lambda value: (
                isinstance(value, tuple)
                and len(value) == len(parts)
                and all(valid(item) for valid, item in zip(parts, value, strict=True))
            )
        case spaces.Dict():
            named = {key: _validator(part) for key, part in space.spaces.items()}
            return lambda value: (
                isinstance(value, dict)
                and value.keys() == named.keys()
                and all(valid(value[key]) for key, valid in named.items())
            )
    return space.contains


def _box_validator(space: spaces.Box) -> Callable[[Any], bool]:
    shape, dtype = space.shape, np.dtype(space.dtype)
    if dtype.kind != "f":
        return lambda value: type(value) is np.ndarray and value.shape == shape and value.dtype == dtype

    if len(shape) == 1 and shape[0] <= _SHORT:
        return _short_vector_validator(shape[0], dtype)
    zeros = np.zeros(int(np.prod(shape)), dtype)

    def valid(value: Any) -> bool:
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            return False
        # Zero times NaN or infinity is NaN: one dot product with zeros costs a quarter of isfinite().all().
        return isfinite(zeros.dot(value.ravel()))

    return valid


def _short_vector_validator(length: int, dtype: np.dtype[Any]) -> Callable[[Any], bool]:
    """Below some twenty values a list is the fastest; this runs on every step of every environment.

    What is not an array raises here, `AttributeError` or `TypeError`, which the callers take for False.
    """

    def valid(value: Any) -> bool:
        values = value.tolist()
        return value.dtype == dtype and len(values) == length and all(map(isfinite, values))

    return valid


def explain(key: str, value: Any, space: spaces.Space[Any]) -> str:
    """Say in one sentence why a value is not an element of a space."""
    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        if value.keys() != space.spaces.keys():
            return f"{key} has the keys {sorted(map(str, value))}; the space declares {sorted(map(str, space.spaces))}"
        for name, part in space.spaces.items():
            if not is_valid(value[name], part):
                return explain(f"{key}[{name!r}]", value[name], part)
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple) and len(value) == len(space.spaces):
        for index, part in enumerate(space.spaces):
            if not is_valid(value[index], part):
                return explain(f"{key}[{index}]", value[index], part)
    if isinstance(space, spaces.Box):
        return _explain_box(key, value, space)
    return f"{key} is {value!r}; it is not an element of {space}"


def _explain_box(key: str, value: Any, space: spaces.Box) -> str:
    if not isinstance(value, np.ndarray):
        return f"{key} is of type {type(value).__name__}; the space declares an array of {space.dtype}"
    if value.shape != space.shape:
        return f"{key} has shape {value.shape}; the space declares {space.shape}"
    if value.dtype != space.dtype:
        return f"{key} has dtype {value.dtype}; the space declares {space.dtype}"
    bad = np.argwhere(~np.isfinite(value))
    if len(bad):
        index = tuple(int(part) for part in bad[0])
        place = f"{key}[{', '.join(map(str, index))}]" if index else key
        return f"{place} is {value[index]}; every value must be finite"
    return f"{key} is outside the bounds of {space}"


def _shape_of(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values ({', '.join(type(item).__name__ for item in result)})"
    return f"a {type(result).__name__}"

"""The class users derive their environments from."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class BaseEnvironment(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that takes its parameters as one `config`.

    Derive, set `observation_space` and `action_space`, write `reset` and `step`:

        class Thermostat(BaseEnvironment):
            observation_space = spaces.Box(-50.0, 50.0, (1,), np.float32)
            action_space = spaces.Discrete(2)

            def __init__(self, config):
                super().__init__(config)
                self.drift = self.config.get("drift", 0.1)

            def reset(self):
                self.temperature = self.np_random.uniform(-1.0, 1.0)
                return [self.temperature]

            def step(self, action):
                self.temperature += (1.0 if action else -1.0) * self.drift
                return [self.temperature], -abs(self.temperature), False, {}

    What a class writes is adapted to Gymnasium's contract, so the class is a complete `gymnasium.Env`:

    - `reset(self)` may leave out `seed` and `options`. `self.np_random` is seeded before it runs, and the options are
      in `self.reset_options`. Draw every random number from `self.np_random`, and the environment is reproducible.
    - `reset` may return the observation alone, or observation and info.
    - `step` returns Gymnasium's five values, or four: observation, reward, done, info. Then `done` means terminated,
      unless `info["TimeLimit.truncated"]` is true.
    - An observation that is a list, or of another number type, becomes an array of the declared space's dtype.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = dict(config or {})
        self.reset_options: dict[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reset" in cls.__dict__:
            cls.reset = _adapt_reset(cls.__dict__["reset"])  # type: ignore[method-assign]
        if "step" in cls.__dict__:
            cls.step = _adapt_step(cls.__dict__["step"])  # type: ignore[method-assign]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed `self.np_random` (only when a seed is given) and remember the options; derived classes go on.

        Returns (None, {}): the first observation is the derived class's to make.
        """
        super().reset(seed=seed)
        self.reset_options = dict(options or {})
        return None, {}


def _adapt_reset(written: Callable[..., Any]) -> Callable[..., tuple[Any, dict[str, Any]]]:
    names = inspect.signature(written).parameters
    open_ended = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in names.values())

    @functools.wraps(written)
    def reset(
        self: BaseEnvironment, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        given = {"seed": seed, "options": options}
        accepted = {key: value for key, value in given.items() if open_ended or key in names}
        if "seed" not in accepted:
            BaseEnvironment.reset(self, seed=seed, options=options)
        returned = written(self, **accepted)
        observation, info = returned if _is_pair(returned) else (returned, {})
        return _as_declared(observation, self.observation_space), info

    return _with_signature(reset)


def _adapt_step(written: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(written)
    def step(self: BaseEnvironment, action: Any) -> Any:
        returned = written(self, action)
        if not isinstance(returned, tuple) or len(returned) not in (4, 5):
            return returned  # the guard, or Gymnasium, says what is wrong with it
        if len(returned) == 4:
            observation, reward, done, info = returned
            truncated = bool(done) and isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))
            returned = (observation, reward, bool(done) and not truncated, truncated, info)
        return (_as_declared(returned[0], self.observation_space), *returned[1:])

    return step


def _with_signature(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Show Gymnasium's signature, not the adapted one: its checkers look for `seed` and `options` there."""
    del reset.__wrapped__  # type: ignore[attr-defined]
    return reset


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)


def _as_declared(value: Any, space: spaces.Space[Any]) -> Any:
    """Numbers in the declared dtype; everything else, wrong shapes too, stays for the guard to name."""
    if isinstance(space, spaces.Box) and isinstance(value, list | tuple | float | int | np.ndarray | np.number):
        return _cast(value, np.dtype(space.dtype))
    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        return {
            key: _as_declared(item, space.spaces[key]) if key in space.spaces else item for key, item in value.items()
        }
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple) and len(value) == len(space.spaces):
        return tuple(_as_declared(item, part) for item, part in zip(value, space.spaces, strict=True))
    return value


def _cast(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == dtype:
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        return value  # ragged
    if array.dtype.kind not in "iufb" or (dtype.kind in "iu" and array.dtype.kind == "f"):
        return value
    return array.astype(dtype)

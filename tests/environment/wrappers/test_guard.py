from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loomrl.environment.wrappers.guard import EnvironmentGuard
from loomrl.errors import EnvironmentFault

GOOD = np.array([0.5, -0.5], dtype=np.float32)


class Scripted(gymnasium.Env):
    """Returns what it is told to."""

    action_space = spaces.Discrete(2)

    def __init__(self, result: Any, space: spaces.Space | None = None, first: Any = (GOOD, {})) -> None:
        self.observation_space = space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.result, self.first = result, first

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        if isinstance(self.first, Exception):
            raise self.first
        return self.first

    def step(self, action: Any) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def step_result(**changes: Any) -> tuple[Any, ...]:
    return tuple({"obs": GOOD, "reward": 1.0, "terminated": False, "truncated": False, "info": {}, **changes}.values())


def second_step(env: gymnasium.Env) -> Any:
    guard = EnvironmentGuard(env, "scripted")
    guard.reset(seed=7)
    return guard.step(0)


FAULTS = {
    "nan": (step_result(obs=np.array([0.0, np.nan], np.float32)), r"observation\[1\] is nan"),
    "infinite": (step_result(obs=np.array([np.inf, 0.0], np.float32)), r"observation\[0\] is inf"),
    "minus infinite": (step_result(obs=np.array([-np.inf, 0.0], np.float32)), r"observation\[0\] is -inf"),
    "dtype": (step_result(obs=np.zeros(2)), "observation has dtype float64; the space declares float32"),
    "shape": (step_result(obs=np.zeros(3, np.float32)), r"observation has shape \(3,\); the space declares \(2,\)"),
    "nested": (step_result(obs=np.zeros((2, 2), np.float32)), r"shape \(2, 2\)"),
    "scalar": (step_result(obs=np.zeros((), np.float32)), r"shape \(\)"),
    "list": (step_result(obs=[0.0, 0.0]), "observation is of type list"),
    "reward nan": (step_result(reward=float("nan")), "reward is nan; it must be finite"),
    "reward inf": (step_result(reward=np.float32("inf")), "reward is inf; it must be finite"),
    "reward none": (step_result(reward=None), "reward is None of type NoneType"),
    "reward array": (step_result(reward=np.zeros(2)), r"reward has shape \(2,\)"),
    "terminated": (step_result(terminated=None), "terminated is None of type NoneType"),
    "truncated": (step_result(truncated="no"), "truncated is 'no' of type str"),
    "info": (step_result(info=None), "info is of type NoneType"),
    "four values": (step_result()[:4], "step returned 4 values"),
    "nothing": (None, "step returned a NoneType"),
    "raises": (ZeroDivisionError("oops"), "step raised ZeroDivisionError: oops"),
}


@pytest.mark.parametrize(("result", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_names_environment_step_and_key(result: Any, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message) as caught:
        second_step(Scripted(result))
    assert "environment 'scripted', step 1 (episode's reset seed 7)" in str(caught.value)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (GOOD, "reset returned a ndarray"),
        ((np.full(2, np.nan, np.float32), {}), r"observation\[0\] is nan"),
        ((np.zeros((), np.float32), {}), r"shape \(\)"),
        (OSError("gone"), "reset raised OSError: gone"),
    ],
    ids=["no info", "nan", "scalar", "raises"],
)
def test_a_fault_of_reset(first: Any, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        EnvironmentGuard(Scripted(step_result(), first=first), "scripted").reset(seed=0)


def test_what_is_right_passes_unchanged() -> None:
    result = step_result(reward=np.float32(2.0), terminated=np.True_)
    assert second_step(Scripted(result)) is result


def test_large_finite_values_pass() -> None:
    """Their squares overflow; they are finite all the same."""
    for size in (2, 64):
        large = np.full(size, 3e38, np.float32)
        space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        assert second_step(Scripted(step_result(obs=large), space, first=(large, {})))[0] is large


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(), (20,), (21,), (300,), (5, 5)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_bad_value_is_found_in_any_shape(bad: float, shape: tuple[int, ...], dtype: type) -> None:
    observation = np.zeros(shape, dtype)
    space = spaces.Box(-np.inf, np.inf, shape, dtype)
    good = observation.copy()
    assert second_step(Scripted(step_result(obs=good), space, first=(good, {})))[0] is good
    observation[(-1,) * len(shape)] = bad
    with pytest.raises(EnvironmentFault, match="every value must be finite"):
        second_step(Scripted(step_result(obs=observation), space, first=(good, {})))


def test_structured_observations_name_the_part() -> None:
    space = spaces.Dict({"speed": spaces.Box(-1, 1, (1,), np.float32), "gear": spaces.Tuple((spaces.Discrete(3),))})
    good = {"speed": np.zeros(1, np.float32), "gear": (1,)}
    assert second_step(Scripted(step_result(obs=good), space, first=(good, {})))[0] is good
    faults = {
        r"observation\['speed'\]\[0\] is nan": {**good, "speed": np.full(1, np.nan, np.float32)},
        r"observation\['gear'\]\[0\] is 3; it is not an element of Discrete": {**good, "gear": (3,)},
        r"observation has the keys \['gear'\]": {"gear": (1,)},
    }
    for message, observation in faults.items():
        with pytest.raises(EnvironmentFault, match=message):
            second_step(Scripted(step_result(obs=observation), space, first=(good, {})))

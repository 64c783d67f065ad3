from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from loomrl.envs import BaseEnvironment


class Plain(BaseEnvironment):
    """The signatures of the specification."""

    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.length = self.config.get("length", 3)

    def reset(self) -> Any:
        self.count = 0
        self.value = self.np_random.uniform(-1, 1)
        return [self.value]

    def step(self, action: Any) -> Any:
        self.count += 1
        self.value += float(self.np_random.normal()) * 0.1
        return [self.value], 1, self.count >= self.length, {}


class Full(Plain):
    """Gymnasium's signatures."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"options": options}

    def step(self, action: Any) -> Any:
        return super().step(action)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kind", [Plain, Full])
def test_both_signatures_meet_gymnasiums_contract(kind: type[BaseEnvironment]) -> None:
    check_env(kind({}), skip_render_check=True)


def test_a_seed_repeats_the_episode_and_no_seed_goes_on() -> None:
    env = Plain({})
    first, _ = env.reset(seed=3)
    steps = [env.step(0)[0] for _ in range(3)]
    again, _ = env.reset(seed=3)
    assert np.array_equal(first, again)
    assert np.array_equal(steps, [env.step(0)[0] for _ in range(3)])
    assert not np.array_equal(env.reset()[0], first)


def test_four_values_become_five() -> None:
    env = Plain({"length": 2})
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(0)
    assert observation.dtype == np.float32
    assert (reward, terminated, truncated, info) == (1, False, False, {})
    assert env.step(0)[2:4] == (True, False)


def test_done_by_a_time_limit_is_truncation() -> None:
    class Limited(Plain):
        def step(self, action: Any) -> Any:
            return [0.0], 0.0, True, {"TimeLimit.truncated": True}

    env = Limited({})
    env.reset()
    assert env.step(0)[2:4] == (False, True)


def test_config_options_and_random_state_are_at_hand() -> None:
    config = {"length": 7}
    env = Plain(config)
    env.reset(seed=1, options={"start": 2})
    config["length"] = 0
    assert env.config == {"length": 7}
    assert env.reset_options == {"start": 2}
    assert env.np_random_seed == 1


def test_what_cannot_be_adapted_is_left_for_the_guard() -> None:
    class Wrong(Plain):
        def step(self, action: Any) -> Any:
            return {"not": "a tuple"}

    class WholeNumbers(Plain):
        observation_space = spaces.Box(0, 10, (1,), np.int64)

    assert Wrong({}).step(0) == {"not": "a tuple"}
    env = WholeNumbers({})
    assert isinstance(env.reset(seed=0)[0], list), "0.3 must not silently become 0"


def test_structured_observations_are_cast_part_by_part() -> None:
    class Structured(Plain):
        observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})

        def reset(self) -> Any:
            return {"a": [0.5, 0.5], "b": 2}

    observation, _ = Structured({}).reset(seed=0)
    assert observation["a"].dtype == np.float32
    assert Structured.observation_space.contains(observation)


def test_it_is_a_gymnasium_environment() -> None:
    assert isinstance(gymnasium.wrappers.TimeLimit(Plain({}), 5).unwrapped, BaseEnvironment)

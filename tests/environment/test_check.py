"""Every finding is provoked by an environment with exactly that fault."""

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loomrl.environment.check import Finding, check_environment
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import construct
from loomrl.environment.resolve import resolve
from loomrl.envs import BaseEnvironment

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


class Walk(BaseEnvironment):
    """A random walk without fault."""

    observation_space = spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self) -> Any:
        self.position, self.count = float(self.np_random.normal()), 0
        return [self.position]

    def step(self, action: Any) -> Any:
        self.count += 1
        self.position += (1.0 if action else -1.0) + float(self.np_random.normal())
        return [self.position], 1.0, self.count >= 10, False, {}


def errors(env: gymnasium.Env) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_environment(env) if finding.severity == "error"}


def test_a_conforming_environment_has_no_findings() -> None:
    assert check_environment(Walk()) == []


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "FrozenLake-v1", "LunarLander-v3", "Hopper-v5"])
def test_gymnasiums_own_environments_conform(environment_id: str, tmp_path: Any) -> None:
    env = construct(resolve(EnvironmentConfig(id=environment_id), tmp_path))
    assert errors(env) == {}
    env.close()


class NoSpace(Walk):
    observation_space = None


class TextSpace(Walk):
    observation_space = spaces.Text(3)


class FailingReset(Walk):
    def reset(self) -> Any:
        raise KeyError("start")


class ResetWithoutInfo(gymnasium.Env):
    observation_space, action_space = Walk.observation_space, Walk.action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(1, np.float32)


class FailingStep(Walk):
    def step(self, action: Any) -> Any:
        raise IndexError("no such action")


class FailsLater(Walk):
    def step(self, action: Any) -> Any:
        if self.count == 5:
            raise RuntimeError("the motor is hot")
        return super().step(action)


class ThreeValues(Walk):
    def step(self, action: Any) -> Any:
        return 1, 2, 3


class NotANumber(Walk):
    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return ([np.nan] if self.count == 4 else observation), *rest


class OutOfBounds(Walk):
    observation_space = spaces.Box(-0.001, 0.001, (1,), np.float32)


class InfiniteReward(Walk):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, np.inf, *rest


class WholeNumberFlag(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, 0, info


class GlobalRandom(Walk):
    def reset(self) -> Any:
        super().reset()
        self.position = np.random.normal()
        return [self.position]


class PythonsRandom(Walk):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, random.random(), *rest


class Remembers(Walk):
    total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        observation, _, *rest = super().step(action)
        return observation, float(self.total), *rest


class Unseeded(gymnasium.Env):
    observation_space, action_space = Walk.observation_space, Walk.action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.zeros(1, np.float32), 0.0, self.count > 5, False, {}


class Endless(Walk):
    def step(self, action: Any) -> Any:
        self.position = 0.9 * self.position + float(self.np_random.normal())
        return [self.position], 0.0, False, False, {}


class ReusesItsArray(gymnasium.Env):
    observation_space, action_space = Walk.observation_space, Walk.action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.count, self.array = 0, self.np_random.normal(size=1).astype(np.float32)
        return self.array, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.array += 0.5
        return self.array, 0.0, self.count > 5, False, {}


FAULTY = {
    NoSpace: ("space_declared", "observation_space is None"),
    TextSpace: ("space_supported", "is not supported"),
    FailingReset: ("reset", "raised KeyError: 'start'"),
    ResetWithoutInfo: ("reset_result", "not (observation, info: dict)"),
    FailingStep: ("step", "raised IndexError on a sample of the action space: no such action"),
    FailsLater: ("later_step", "a later reset or step raised RuntimeError: the motor is hot"),
    ThreeValues: ("step_result", "step returned (1, 2, 3)"),
    NotANumber: ("observation", "observation[0] is nan"),
    OutOfBounds: ("observation_bounds", "outside the bounds"),
    InfiniteReward: ("reward", "the reward is inf"),
    WholeNumberFlag: ("truncated", "truncated is 0 of type int"),
    GlobalRandom: ("global_randomness", "global random generators"),
    PythonsRandom: ("global_randomness", "global random generators"),
    Remembers: ("determinism", "Two runs with seed 0"),
    Unseeded: ("seeding", "leaves self.np_random as it was"),
    Endless: ("episode_end", "No episode ended"),
    ReusesItsArray: ("gymnasium", "env_checker"),
}


def test_actions_no_algorithm_takes_are_told() -> None:
    class Structured(Walk):
        action_space = spaces.Dict(left=spaces.Discrete(2))

    told = {finding.name: finding for finding in check_environment(Structured())}
    assert told["action_space"].severity == "advice"
    assert "No algorithm of LoomRL's own acts in Dict('left'" in told["action_space"].problem


@pytest.mark.parametrize("kind", FAULTY, ids=lambda kind: kind.__name__)
def test_a_fault_is_named_with_its_fix(kind: type[gymnasium.Env]) -> None:
    name, words = FAULTY[kind]
    found = errors(kind())
    assert name in found
    assert words in found[name].problem
    assert found[name].fix


def test_a_time_limit_ends_episodes() -> None:
    assert "episode_end" not in errors(gymnasium.wrappers.TimeLimit(Endless(), 20))


def test_equal_episodes_for_all_seeds_are_advice() -> None:
    class Constant(Walk):
        def reset(self) -> Any:
            self.position, self.count = 0.0, 0
            return [0.0]

        def step(self, action: Any) -> Any:
            self.count += 1
            return [0.0], 0.0, self.count > 5, {}

    names = [finding.name for finding in check_environment(Constant()) if finding.severity == "advice"]
    assert names == ["seed_variety"]

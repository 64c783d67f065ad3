"""The velocity-limited tasks: Gymnasium's robots to the bit, with a cost where they were too fast."""

import pickle

import gymnasium
import numpy as np
import pytest

import loomrl.gym
from loomrl.errors import ConfigError

LIMITS = {  # Safety-Gymnasium's velocity tasks, version 1
    "Ant": 2.6222, "HalfCheetah": 3.2096, "Hopper": 0.7402, "Humanoid": 1.4149, "Swimmer": 0.2282, "Walker2d": 2.3415,
}  # fmt: skip

REACHED = {"Ant": 0.6, "HalfCheetah": -0.2, "Hopper": -0.4, "Humanoid": 0.2, "Swimmer": 0.0, "Walker2d": -0.7}


def speed(name: str, info: dict[str, float]) -> float:
    planar = name in ("Ant", "Humanoid")
    return float(np.hypot(info["x_velocity"], info["y_velocity"])) if planar else info["x_velocity"]


@pytest.mark.parametrize("name", LIMITS)
def test_they_are_gymnasiums_robots_with_a_cost(name: str) -> None:
    published = gymnasium.make(f"loomrl/{name}Velocity-v1")
    assert published.spec is not None
    assert published.spec.max_episode_steps == 1_000
    assert published.unwrapped.velocity_limit == LIMITS[name]  # type: ignore[attr-defined]
    limit = REACHED[name]  # with random actions
    limited, plain = gymnasium.make(f"loomrl/{name}Velocity-v1", velocity_limit=limit), gymnasium.make(f"{name}-v5")
    obs, _ = limited.reset(seed=3)
    np.testing.assert_array_equal(obs, plain.reset(seed=3)[0])
    limited.action_space.seed(3)
    costs = []
    for _ in range(60):
        action = limited.action_space.sample()
        obs, reward, terminated, truncated, info = limited.step(action)
        expected = plain.step(action)
        np.testing.assert_array_equal(obs, expected[0])
        assert (reward, terminated, truncated) == expected[1:4]
        assert info["cost"] == (1.0 if speed(name, info) > limit else 0.0)
        costs.append(info["cost"])
        sideways = speed(name, info) > limit >= info["x_velocity"]
        assert not sideways or name in ("Ant", "Humanoid")
        if terminated:
            np.testing.assert_array_equal(limited.reset(seed=4)[0], plain.reset(seed=4)[0])
    assert set(costs) == {0.0, 1.0}


def test_the_limit_is_a_parameter() -> None:
    env = gymnasium.make("loomrl/HopperVelocity-v1", velocity_limit=-100.0)
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[4]["cost"] == 1.0
    again = pickle.loads(pickle.dumps(env.unwrapped))
    assert again.velocity_limit == -100.0


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), "fast"])
def test_a_limit_that_is_no_speed_is_refused(limit: object) -> None:
    with pytest.raises(ConfigError, match=r"velocity_limit is .*; it is a number of metres per second"):
        gymnasium.make("loomrl/HopperVelocity-v1", velocity_limit=limit)


def test_importing_the_package_registers_them() -> None:
    assert loomrl.gym.__name__ == "loomrl.gym"
    assert {f"loomrl/{name}Velocity-v1" for name in LIMITS} <= set(gymnasium.registry)

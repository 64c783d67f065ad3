"""`VectorizedEnv`, as the specification shows it: against single environments of Gymnasium."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import loomrl
from loomrl.envs import VectorizedEnv
from loomrl.errors import ConfigError, EnvironmentFault


@pytest.mark.parametrize(("env_id", "num_steps"), [("CartPole-v1", 60), ("Taxi-v4", 5), ("Hopper-v5", 60)])
def test_it_steps_as_single_environments_do(env_id: str, num_steps: int) -> None:
    singles = [gymnasium.make(env_id) for _ in range(3)]
    rng = np.random.default_rng(0)
    with VectorizedEnv({"env_id": env_id, "num_envs": 3}) as envs:
        assert envs.observation_space == singles[0].observation_space
        assert envs.action_space == singles[0].action_space
        states = envs.reset(seed=5)
        wanted = [single.reset(seed=5 + index)[0] for index, single in enumerate(singles)]
        np.testing.assert_allclose(states, np.stack(wanted), rtol=1e-6)
        num_done = 0
        for _ in range(num_steps):
            actions = np.array([single.action_space.sample(mask=None) for single in singles])
            if actions.dtype.kind == "f":
                actions = rng.uniform(-1, 1, actions.shape).astype(np.float32)
            states, rewards, dones, infos = envs.step(actions)
            assert len(infos) == 3
            for index, single in enumerate(singles):
                state, reward, terminated, truncated, _ = single.step(actions[index])
                assert rewards[index] == pytest.approx(float(reward), rel=1e-5)
                assert (infos[index]["terminated"], infos[index]["truncated"]) == (terminated, truncated)
                assert dones[index] == (terminated or truncated)
                if dones[index]:
                    num_done += 1
                    np.testing.assert_allclose(infos[index]["final_observation"], state, rtol=1e-4, atol=1e-6)
                    state, _ = single.reset()
                else:
                    assert "final_observation" not in infos[index]
                np.testing.assert_allclose(states[index], state, rtol=1e-4, atol=1e-6)
        assert num_done > 0 or env_id == "Taxi-v4"
    for single in singles:
        single.close()


def test_each_environment_tells_its_own_info() -> None:
    with VectorizedEnv({"env_id": "Hopper-v5", "num_envs": 2}) as envs:
        envs.reset(seed=0)
        *_, infos = envs.step(np.zeros((2, 3), np.float32))
    assert {"x_position", "z_distance_from_origin"} <= infos[0].keys()
    assert infos[0]["x_position"] != infos[1]["x_position"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_envs": 2}, "VectorizedEnv: env_id: Field required; the config takes: env_id, num_envs"),
        ({"env_id": "CartPole-v1", "num_envs": 0}, "VectorizedEnv: num_envs: .*greater than or equal to 1"),
        ({"env_id": "CartPole-v1", "num_env": 2}, "VectorizedEnv: num_env: "),
        ("CartPole-v1", "VectorizedEnv takes a mapping .*; found 'CartPole-v1'"),
        (None, "VectorizedEnv takes a mapping .*; found None"),
    ],
)
def test_wrong_configs_are_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loomrl.VectorizedEnv(config)


def test_a_step_before_a_reset_is_refused() -> None:
    with VectorizedEnv({"env_id": "CartPole-v1"}) as envs, pytest.raises(EnvironmentFault, match="call reset first"):
        envs.step(np.array([0]))

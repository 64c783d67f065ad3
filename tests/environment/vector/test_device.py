"""Environments as tensors: each step is Gymnasium's to float32 rounding, and new episodes are drawn for each alone."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.device import DeviceVectorEnv, create
from loomrl.environment.vector.recipe import Recipe

# The lowest and highest states that are tried, some of them beyond where an episode ends.
STATES = {
    "CartPole-v1": ([-2.6, -3.0, -0.25, -3.0], [2.6, 3.0, 0.25, 3.0]),
    "Pendulum-v1": ([-9.0, -8.0], [9.0, 8.0]),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07]),
}
NUM_ENVS = 300


def make(name: str) -> DeviceVectorEnv:
    envs = create(Recipe(resolve(EnvironmentConfig(id=name), Path("."))), NUM_ENVS, AutoresetMode.SAME_STEP)
    assert isinstance(envs, DeviceVectorEnv)
    envs.action_space.seed(1)
    return envs


@pytest.mark.parametrize("name", STATES)
def test_a_step_is_gymnasiums(name: str) -> None:
    with closing(make(name)) as envs:
        envs.reset(seed=0)
        states = np.random.default_rng(0).uniform(*STATES[name], (NUM_ENVS, len(STATES[name][0]))).astype(np.float32)
        envs.states = torch.from_numpy(states).to(envs.device)
        actions = envs.action_space.sample()
        _, reward, terminated, _, info = envs.step(torch.from_numpy(actions).to(envs.device))
        env: Any = gymnasium.make(name).unwrapped
        found = [value.cpu().numpy() for value in (info["final_obs"], reward, terminated)]
        for index in range(NUM_ENVS):
            env.reset(seed=0)
            env.state = states[index].astype(np.float64)
            obs, gain, over, _, _ = env.step(actions[index])
            assert found[0][index] == pytest.approx(obs, rel=1e-4, abs=1e-4)
            assert found[1][index] == pytest.approx(gain, rel=1e-4, abs=1e-4)
            assert found[2][index] == over
        if name != "Pendulum-v1":
            assert 0 < found[2].sum() < NUM_ENVS


@pytest.mark.parametrize("name", STATES)
def test_each_new_episode_has_a_state_of_its_own(name: str) -> None:
    with closing(make(name)) as envs:
        first, _ = envs.reset(seed=0)
        envs.elapsed += 10_000  # all end at their time limit, at once
        obs, _, _, truncated, _ = envs.step(torch.from_numpy(envs.action_space.sample()).to(envs.device))
        assert truncated.all()
        assert not envs.elapsed.any()
        env = gymnasium.make(name)
        starts = np.array([env.reset(seed=seed)[0] for seed in range(NUM_ENVS)])
        for begun in (first.cpu().numpy(), obs.cpu().numpy()):
            assert len(np.unique(begun, axis=0)) > 0.9 * NUM_ENVS
            assert begun.mean(0) == pytest.approx(starts.mean(0), abs=0.25 * float(np.ptp(starts, 0).max()))
            assert np.ptp(begun, 0) == pytest.approx(np.ptp(starts, 0), rel=0.1, abs=1e-6)
        assert not torch.equal(first, obs)


def test_state_goes_on_to_the_bit() -> None:
    with closing(make("Pendulum-v1")) as envs:
        envs.reset(seed=3)
        actions = torch.from_numpy(envs.action_space.sample()).to(envs.device)
        envs.elapsed[::2] = 198  # half of them end within the steps that follow
        saved = envs.state_dict()
        played = []
        for _ in range(2):
            envs.load_state_dict(saved)
            played.append([envs.step(actions)[0].cpu().numpy().tobytes() for _ in range(4)])
        assert played[0] == played[1]

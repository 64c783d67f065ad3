"""Frames are kept once and stacked when sampled, whatever stood at the start of an episode."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.errors import ConfigError
from loomrl.types import Trajectory
from tests.support.naive_replay import NaiveReplay, World


def image_spec(
    frame_stack: int, num_rows: int = 7, num_envs: int = 2, channels: int = 1, n_step: int = 1
) -> ReplaySpec:
    """Stacks of `frame_stack` pictures of `channels` x 2 x 3 bytes."""
    return ReplaySpec(
        capacity=num_rows * num_envs,
        num_envs=num_envs,
        obs_shape=(frame_stack * channels, 2, 3),
        obs_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
        n_step=n_step,
        frame_stack=frame_stack,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_equals_a_buffer_that_keeps_whole_stacks(data: st.DataObject) -> None:
    spec = image_spec(
        frame_stack=data.draw(st.integers(2, 4)),
        num_rows=data.draw(st.integers(1, 9)),
        num_envs=data.draw(st.integers(1, 3)),
        channels=data.draw(st.integers(1, 2)),
        n_step=data.draw(st.integers(1, 4)),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ends = data.draw(st.sampled_from([0.0, 0.15, 0.6]))
    padding = data.draw(st.sampled_from(["reset", "zero", "random"]))
    world = World(spec, rng, terminate=ends, truncate=ends / 2, cut=0.3, padding=padding)
    buffer, naive = ReplayBuffer(spec), NaiveReplay(spec)
    for num_steps in data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=6)):
        trajectory = world.trajectory(num_steps)
        buffer.add(trajectory)
        naive.add(trajectory)
        naive.check(buffer.sample(spec.capacity, rng))
    restored = ReplayBuffer(spec)
    restored.load_state_dict(buffer.state_dict())
    naive.check(restored.sample(spec.capacity, rng))


def test_stack_at_the_oldest_row_reaches_back_to_frames_that_left_the_window() -> None:
    spec = image_spec(frame_stack=4, num_rows=5, num_envs=1)
    world = World(spec, np.random.default_rng(0), terminate=0.0, truncate=0.0)
    buffer, naive = ReplayBuffer(spec), NaiveReplay(spec)
    trajectory = world.trajectory(23)  # one episode all along
    buffer.add(trajectory)
    naive.add(trajectory)
    rng = np.random.default_rng(0)
    batches = [buffer.sample(5, rng) for _ in range(30)]
    assert 18 in np.concatenate([batch.index for batch in batches])  # the oldest of 23 - 5
    for batch in batches:
        naive.check(batch)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_frames_may_stand_anywhere(dtype: type) -> None:
    rng = np.random.default_rng(2)
    first = ReplaySpec(14, 2, (3, 2, 5), dtype, (), np.int64, n_step=2, frame_stack=3)
    places = rng.permutation(30).reshape(3, 10)
    spec = replace(first, obs_shape=(6, 5), frame_places=places)
    world = World(first, rng, terminate=0.15, truncate=0.1, cut=0.2, padding="random")
    buffer, naive = ReplayBuffer(spec), NaiveReplay(spec)

    def observed(obs: NDArray) -> NDArray:
        """(T, B, 3, 2, 5) -> (T, B, 6, 5) with the values of the frames at their places."""
        found = np.empty((*obs.shape[:2], 30), dtype)
        found[..., places.ravel()] = obs.reshape(found.shape)
        return found.reshape(*obs.shape[:2], 6, 5)

    for num_steps in (4, 9, 3, 20):
        trajectory = world.trajectory(num_steps)
        trajectory = replace(trajectory, obs=observed(trajectory.obs), next_obs=observed(trajectory.next_obs))
        buffer.add(trajectory)
        naive.add(trajectory)
        naive.check(buffer.sample(14, rng))
        naive.check(buffer.sample(5, rng))
    assert ReplayBuffer(spec).nbytes == ReplayBuffer(first).nbytes


@pytest.mark.parametrize("places", [np.arange(30).reshape(5, 6), np.zeros((3, 10), np.int64)])
def test_places_that_are_not_of_this_stack_are_refused(places: NDArray) -> None:
    with pytest.raises(ConfigError, match="frame_places .* each of the 30 values of an observation once"):
        ReplaySpec(14, 2, (3, 2, 5), np.uint8, (), np.int64, frame_stack=3, frame_places=places)


@pytest.mark.parametrize("padding_type", ["reset", "zero"])
def test_gymnasium_stacks(padding_type: str) -> None:
    env = gymnasium.make("CartPole-v1")
    env = gymnasium.wrappers.FrameStackObservation(env, 3, padding_type=padding_type)
    spec = ReplaySpec(64, 1, (3, 4), np.float32, (), np.int64, n_step=2, frame_stack=3)
    buffer, naive, rng = ReplayBuffer(spec), NaiveReplay(spec), np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for _ in range(100):
        action = int(rng.integers(2))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        step = [np.asarray(value)[None, None] for value in (obs, action, reward, terminated, truncated, next_obs)]
        buffer.add(Trajectory(*step))
        naive.add(Trajectory(*step))
        obs = env.reset()[0] if terminated or truncated else next_obs
    naive.check(buffer.sample(64, rng))


def test_frames_are_kept_once() -> None:
    spec = ReplaySpec(2000, 1, (4, 84, 84), np.uint8, (), np.int64, frame_stack=4)
    buffer = ReplayBuffer(spec)
    assert spec.raw_bytes == 2000 * (84 * 84 + 8 + 4 + 2)
    assert buffer.nbytes < 1.05 * spec.raw_bytes


def test_observations_that_are_no_stack_are_refused() -> None:
    spec = image_spec(frame_stack=2)
    trajectory = World(spec, np.random.default_rng(0), terminate=0.0, truncate=0.0).trajectory(5)
    trajectory.next_obs[3, 1, 0] += 1
    buffer = ReplayBuffer(spec)
    with pytest.raises(ConfigError, match="moved on by one; it does not at step 3 of environment 1"):
        buffer.add(trajectory)
    assert len(buffer) == 0

"""Replays dealt out anew hold what replays of these environments would hold."""

from typing import Any

import numpy as np
import pytest

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.columns import redistribute
from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.types import Trajectory

NUM_ENVS = 4


def walked(num_steps: int, frame_stack: int) -> Trajectory:
    """Episodes of four environments that end here and there; a stack's frames move on by one."""
    rng = np.random.default_rng(0)
    obs = np.empty((num_steps, NUM_ENVS, frame_stack), np.float32)
    next_obs = np.empty_like(obs)
    ended = rng.random((num_steps, NUM_ENVS)) < 0.2
    now = rng.normal(size=(NUM_ENVS, frame_stack)).astype(np.float32)
    for step in range(num_steps):
        obs[step] = now
        now = np.concatenate([now[:, 1:], rng.normal(size=(NUM_ENVS, 1)).astype(np.float32)], 1)
        next_obs[step] = now
        now = np.where(ended[step, :, None], rng.normal(size=now.shape).astype(np.float32), now)
    shape = num_steps, NUM_ENVS
    action, reward = rng.integers(0, 3, shape), rng.normal(size=shape)
    return Trajectory(obs, action, reward, ended, np.zeros(shape, bool), next_obs)


def filled(columns: list[int], kind: type[Any], frame_stack: int) -> Any:
    """A replay of some of the environments, in which the oldest rows have made room."""
    spec = ReplaySpec(
        24 * len(columns), len(columns), (frame_stack,), np.float32, (), np.int64, frame_stack=frame_stack
    )
    replay, whole = kind(spec), walked(40, frame_stack)
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    replay.add(Trajectory(**{name: np.ascontiguousarray(getattr(whole, name)[:, columns]) for name in names}))
    return replay


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([[0, 1], [2, 3]], [[0, 1, 2, 3]]),
        ([[0, 1, 2, 3]], [[0, 1], [2, 3]]),
        ([[0, 1], [2, 3]], [[0, 1], [2, 3], [0, 1]]),  # too few: the first again
        ([[0], [1], [2], [3]], [[0, 1, 2]]),  # too many: the last is left out
    ],
)
def test_columns_are_dealt_in_order(
    before: list[list[int]], after: list[list[int]], kind: type[Any], frame_stack: int
) -> None:
    states = [filled(columns, kind, frame_stack).state_dict() for columns in before]
    found = redistribute(states, len(after), len(after[0]))
    for columns, state in zip(after, found, strict=True):
        replay = filled(columns, kind, frame_stack)
        wanted = replay.state_dict()
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)
        replay.load_state_dict(state)

"""The compiled loops over rows: hand-counted transitions, and any history against the same written in plain Python."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.algorithms.replay import kernels
from loomrl.algorithms.replay.kernels import FINALS_BEGIN, FINALS_END, NUM_COUNTERS, ROWS, Ring


def empty(num_envs: int = 1, slots: int = 8, frame: int = 1, stack: int = 1, side: int = 64) -> Ring:
    """A ring whose every array is zero; an action is one byte."""
    size = frame * stack
    return Ring(
        counters=np.zeros(NUM_COUNTERS, np.int64),
        obs=np.zeros((num_envs, slots, frame), np.uint8),
        action=np.zeros((num_envs, slots, 1), np.uint8),
        reward=np.zeros((num_envs, slots), np.float32),
        flags=np.zeros((num_envs, slots), np.uint8),
        head=np.zeros((num_envs, size), np.uint8),
        final_keys=np.zeros(side, np.int64),
        finals=np.zeros((side, size), np.uint8),
        start_keys=np.zeros(side, np.int64),
        starts=np.zeros((side, size), np.uint8),
    )


@dataclass
class Steps:
    """T steps of B environments; observations are s bytes."""

    obs: np.ndarray  # (T, B, s)
    next_obs: np.ndarray  # (T, B, s)
    reward: np.ndarray  # (T, B)
    terminated: np.ndarray  # (T, B)
    truncated: np.ndarray  # (T, B)

    @property
    def action(self) -> np.ndarray:
        """Some byte that tells steps apart, (T, B, 1)."""
        return (np.arange(self.reward.size) % 251).astype(np.uint8).reshape(*self.reward.shape, 1)

    def write(self, ring: Ring, first: int = 0) -> int:
        return int(
            kernels.append(
                *ring, self.obs, self.action, self.reward, self.terminated, self.truncated, self.next_obs, first
            )
        )


def steps(obs: list[int], next_obs: list[int], reward: list[float], ended: str) -> Steps:
    """One environment, observations of one byte; `ended` has a letter a step: `t`erminated, t`r`uncated or `.`."""

    def column(values: list[int]) -> np.ndarray:
        return np.array(values, np.uint8).reshape(-1, 1, 1)

    letters = np.array(list(ended))[:, None]
    rewards = np.array(reward, np.float32)[:, None]
    return Steps(column(obs), column(next_obs), rewards, letters == "t", letters == "r")


@dataclass
class Gathered:
    """N transitions."""

    obs: np.ndarray  # (N, s)
    action: np.ndarray  # (N, 1)
    reward: np.ndarray  # (N,)
    next_obs: np.ndarray  # (N, s)
    terminated: np.ndarray  # (N,)
    discount: np.ndarray  # (N,)


def gather(ring: Ring, index: list[int], n_step: int = 1, gamma: float = 0.5) -> Gathered:
    count, size = len(index), ring.head.shape[1]
    found = Gathered(
        np.zeros((count, size), np.uint8),
        np.zeros((count, 1), np.uint8),
        np.zeros(count, np.float32),
        np.zeros((count, size), np.uint8),
        np.zeros(count, np.bool_),
        np.zeros(count, np.float32),
    )
    kernels.gather(*ring, np.array(index), n_step, gamma, *vars(found).values())
    return found


def test_rewards_are_summed_to_the_end_of_the_episode_and_no_farther() -> None:
    ring = empty()
    history = steps([1, 2, 3, 5, 6], [2, 3, 9, 6, 7], [1, 2, 4, 8, 16], "..t..")
    assert history.write(ring) == 5
    found = gather(ring, [0, 1, 2, 3, 4], n_step=2)
    assert found.obs[:, 0].tolist() == [1, 2, 3, 5, 6]
    assert found.action[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.reward.tolist() == [1 + 0.5 * 2, 2 + 0.5 * 4, 4, 8 + 0.5 * 16, 16]
    assert found.next_obs[:, 0].tolist() == [3, 9, 9, 7, 7]  # the true last one, and what follows the newest row
    assert found.terminated.tolist() == [False, True, True, False, False]
    assert found.discount.tolist() == [0.25, 0.25, 0.5, 0.25, 0.5]


def test_a_time_limit_ends_the_sum_and_is_no_terminal_state() -> None:
    ring = empty()
    steps([1, 2, 5], [2, 9, 6], [1, 2, 4], ".r.").write(ring)
    found = gather(ring, [0], n_step=3)
    assert (found.reward.tolist(), found.next_obs.tolist(), found.discount.tolist()) == ([2.0], [[9]], [0.25])
    assert not found.terminated[0]


def test_a_step_that_begins_elsewhere_cuts_the_episode_before_it() -> None:
    ring = empty()
    steps([1, 2], [2, 3], [1, 2], "..").write(ring)
    steps([7], [8], [4], ".").write(ring)  # not where the last one led
    found = gather(ring, [0, 1, 2], n_step=3)
    assert found.reward.tolist() == [1 + 0.5 * 2, 2, 4]
    assert found.next_obs[:, 0].tolist() == [3, 3, 8]
    assert not found.terminated.any()


def test_the_newest_rows_take_the_place_of_the_oldest_and_what_belongs_to_these_is_released() -> None:
    ring = empty(slots=4, side=4)
    obs = list(range(1, 13))
    for value in obs:  # every step is an episode
        assert steps([value], [100 + value], [value], "t").write(ring) == 1
    assert ring.counters[ROWS] == 12
    assert ring.counters[FINALS_END] - ring.counters[FINALS_BEGIN] <= 4
    found = gather(ring, [8, 9, 10, 11])
    assert found.obs[:, 0].tolist() == [9, 10, 11, 12]
    assert found.next_obs[:, 0].tolist() == [109, 110, 111, 112]


def test_writing_stops_before_a_side_store_is_full_and_goes_on_where_it_stopped() -> None:
    ring = empty(slots=8, side=2)
    history = steps([1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [1, 2, 3, 4, 5], "ttttt")
    assert history.write(ring) == 3  # the successors of rows 0 and 1 fill it
    assert ring.counters[ROWS] == 3
    wider = ring._replace(final_keys=np.resize(ring.final_keys, 8), finals=np.resize(ring.finals, (8, 1)))
    assert history.write(wider, first=3) == 5
    assert gather(wider, [0, 1, 2, 3, 4]).next_obs[:, 0].tolist() == [11, 12, 13, 14, 15]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_reward_that_float32_cannot_hold_is_found(bad: float) -> None:
    reward = np.zeros((3, 2))
    reward[1, 1] = bad
    frames, ended = np.zeros((3, 2, 1), np.uint8), np.zeros((3, 2), np.bool_)
    assert kernels.inspect(frames, frames, reward, ended, ended, 1) == (kernels.BAD_REWARD, 1, 1)
    reward[1, 1] = kernels.LARGEST
    assert kernels.inspect(frames, frames, reward, ended, ended, 1) == (kernels.DONE, 0, 0)


def test_frames_that_do_not_move_on_by_one_are_found_but_where_an_episode_ends() -> None:
    obs = np.array([[[1, 2, 3]], [[2, 3, 4]]], np.uint8)  # (T, B, 3 frames)
    moved, stuck = np.array([[[2, 3, 4]], [[3, 4, 5]]], np.uint8), np.array([[[2, 3, 4]], [[9, 4, 5]]], np.uint8)
    reward, going_on, ended = np.zeros((2, 1)), np.zeros((2, 1), np.bool_), np.array([[False], [True]])
    assert kernels.inspect(obs, moved, reward, going_on, going_on, 1) == (kernels.DONE, 0, 0)
    assert kernels.inspect(obs, stuck, reward, going_on, going_on, 1) == (kernels.BAD_STACK, 1, 0)
    assert kernels.inspect(obs, stuck, reward, ended, going_on, 1) == (kernels.DONE, 0, 0)
    assert kernels.inspect(obs, stuck, reward, going_on, ended, 1) == (kernels.DONE, 0, 0)


def test_bytes_are_put_in_another_order() -> None:
    source, target = np.array([[1, 2, 3], [4, 5, 6]], np.uint8), np.zeros((2, 3), np.uint8)
    kernels.rearrange(target, source, np.array([2, 0, 1]))
    assert target.tolist() == [[3, 1, 2], [6, 4, 5]]


# --- any history ------------------------------------------------------------------------------------------------


def played(rng: np.random.Generator, num_steps: int, num_envs: int, frame: int, stack: int) -> Steps:
    """Episodes of random frames that end at random; most begin with copies of one frame, some with others."""
    size = frame * stack
    obs, next_obs = (np.zeros((num_steps, num_envs, size), np.uint8) for _ in range(2))
    terminated, truncated = rng.random((2, num_steps, num_envs)) < 0.15
    for env in range(num_envs):
        seen = None
        for step in range(num_steps):
            if seen is None:
                first = rng.integers(0, 256, (1 if rng.random() < 0.7 else stack, frame), np.uint8)
                seen = np.broadcast_to(first, (stack, frame)).reshape(-1)
            after = np.concatenate([seen[frame:], rng.integers(0, 256, frame, np.uint8)])
            obs[step, env], next_obs[step, env] = seen, after
            is_over = terminated[step, env] or truncated[step, env] or rng.random() < 0.05  # or it is left
            seen = None if is_over else after
    return Steps(obs, next_obs, rng.normal(size=(num_steps, num_envs)).astype(np.float32), terminated, truncated)


def expected(history: Steps, row: int, env: int, n_step: int, gamma: float) -> tuple[float, np.ndarray, bool, float]:
    """The discounted sum, what follows, whether that is terminal, and gamma^k: step by step."""
    total, discount, step = 0.0, 1.0, row
    while True:
        total += discount * float(history.reward[step, env])
        discount *= gamma
        ended = history.terminated[step, env] or history.truncated[step, env]
        is_last = step + 1 == len(history.reward)
        is_left = not is_last and not np.array_equal(history.next_obs[step, env], history.obs[step + 1, env])
        if ended or is_last or is_left or step + 1 - row == n_step:
            return total, history.next_obs[step, env], bool(history.terminated[step, env]), discount
        step += 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 3),
    slots=st.integers(8, 40),
    frame=st.sampled_from([1, 3, 300]),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
)
def test_any_history_is_gathered_as_it_was_played(
    seed: int, num_envs: int, slots: int, frame: int, stack: int, n_step: int
) -> None:
    rng = np.random.default_rng(seed)
    history = played(rng, 60, num_envs, frame, stack)
    ring = empty(num_envs, slots, frame, stack, side=60 * num_envs)
    assert history.write(ring) == 60
    oldest = max(0, 60 - slots + stack - 1)  # of a row before it the older frames may be gone
    places = [(row, env) for row in range(oldest, 60) for env in range(num_envs)]
    found = gather(ring, [row * num_envs + env for row, env in places], n_step, 0.9)
    for number, (row, env) in enumerate(places):
        total, after, is_terminal, discount = expected(history, row, env, n_step, 0.9)
        np.testing.assert_array_equal(found.obs[number], history.obs[row, env])
        np.testing.assert_array_equal(found.action[number], history.action[row, env])
        np.testing.assert_array_equal(found.next_obs[number], after)
        assert found.reward[number] == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert (found.terminated[number], found.discount[number]) == (is_terminal, pytest.approx(discount))

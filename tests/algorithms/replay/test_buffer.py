"""Uniform replay against hand calculation and against a buffer that keeps everything twice."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault
from loomrl.types import Trajectory
from tests.support.naive_replay import NaiveReplay, World, vector_spec

SCALAR = {"obs_shape": (), "obs_dtype": np.float64, "action_shape": (), "action_dtype": np.int64}


def equal(left: Transitions, right: Transitions) -> bool:
    """Whether two batches are equal to the bit."""
    names = [field.name for field in fields(Transitions)]
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


def line(
    rewards: list[float], terminated: tuple[int, ...] = (), truncated: tuple[int, ...] = (), start: int = 0
) -> Trajectory:
    """One environment whose observation is the number of the step, and -n the end of an episode after step n."""
    steps = np.arange(start, start + len(rewards))
    ends = np.isin(steps, terminated) | np.isin(steps, truncated)
    return Trajectory(
        obs=steps.astype(np.float64)[:, None],
        action=(10 * steps)[:, None],
        reward=np.array(rewards, np.float64)[:, None],
        terminated=np.isin(steps, terminated)[:, None],
        truncated=np.isin(steps, truncated)[:, None],
        next_obs=np.where(ends, -steps, steps + 1).astype(np.float64)[:, None],
    )


def by_row(buffer: ReplayBuffer, row: int) -> dict[str, float]:
    """The transition of one row, drawn from the buffer."""
    rng = np.random.default_rng(0)
    batches = (buffer.sample(buffer.spec.capacity, rng) for _ in range(1000))
    batch = next(batch for batch in batches if row in batch.index)
    at = int(np.flatnonzero(batch.index == row)[0])
    return {field.name: getattr(batch, field.name)[at].item() for field in fields(Transitions)}


def single(n_step: int, capacity: int = 16) -> ReplaySpec:
    return ReplaySpec(capacity, 1, n_step=n_step, gamma=0.5, **SCALAR)


def test_n_steps_by_hand() -> None:
    buffer = ReplayBuffer(single(n_step=3))
    # An episode ends in a terminal state after step 3, one is cut off by its time limit after step 5.
    buffer.add(line([1, 2, 4, 8, 16, 32, 64, 128], terminated=(3,), truncated=(5,)))
    # row: reward, next_obs, terminated, discount, each worked out with gamma 1/2
    by_hand = {
        0: (1 + 2 / 2 + 4 / 4, 3, False, 1 / 8),
        1: (2 + 4 / 2 + 8 / 4, -3, True, 1 / 8),  # the third step is the terminal one
        2: (4 + 8 / 2, -3, True, 1 / 4),
        3: (8, -3, True, 1 / 2),
        4: (16 + 32 / 2, -5, False, 1 / 4),  # cut off: bootstraps from the true successor
        5: (32, -5, False, 1 / 2),
        6: (64 + 128 / 2, 8, False, 1 / 4),  # the newest row: bootstraps from what followed it
        7: (128, 8, False, 1 / 2),
    }
    for row, (reward, next_obs, terminated, discount) in by_hand.items():
        found = by_row(buffer, row)
        assert (found["obs"], found["action"]) == (row, 10 * row)
        expected = (reward, next_obs, terminated, discount)
        assert (found["reward"], found["next_obs"], found["terminated"], found["discount"]) == expected, row
        assert found["weight"] == 1.0


def test_newest_row_goes_on_when_more_is_added() -> None:
    buffer = ReplayBuffer(single(n_step=2))
    buffer.add(line([1, 2]))
    assert by_row(buffer, 1)["reward"] == 2.0
    buffer.add(line([4, 8], start=2))
    assert by_row(buffer, 1)["reward"] == 2 + 4 / 2
    assert by_row(buffer, 1)["next_obs"] == 3.0


def test_segment_that_begins_elsewhere_ends_the_sum_and_keeps_the_successor() -> None:
    buffer = ReplayBuffer(single(n_step=3))
    buffer.add(line([1, 2]))
    buffer.add(line([4, 8, 16], start=100))  # not where the first left off
    found = by_row(buffer, 0)
    assert (found["reward"], found["next_obs"], found["terminated"], found["discount"]) == (2.0, 2.0, False, 0.25)
    assert by_row(buffer, 2)["obs"] == 100.0


def test_ring_forgets_the_oldest_and_never_reads_across_its_write_head() -> None:
    buffer = ReplayBuffer(single(n_step=4, capacity=5))
    buffer.add(line([2.0**i for i in range(13)], truncated=(1, 9)))
    assert len(buffer) == 5
    batch = buffer.sample(5, np.random.default_rng(0))
    seen = set(batch.index.tolist())
    for seed in range(20):
        seen |= set(buffer.sample(5, np.random.default_rng(seed)).index.tolist())
    assert seen == {8, 9, 10, 11, 12}
    assert (by_row(buffer, 8)["reward"], by_row(buffer, 8)["next_obs"]) == (256 + 512 / 2, -9)
    assert (by_row(buffer, 11)["reward"], by_row(buffer, 11)["next_obs"]) == (2048 + 4096 / 2, 13)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_equals_a_buffer_that_keeps_everything_twice(data: st.DataObject) -> None:
    num_envs, num_rows = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    spec = vector_spec(
        capacity=num_envs * num_rows,
        num_envs=num_envs,
        n_step=data.draw(st.integers(1, 5)),
        gamma=data.draw(st.sampled_from([0.0, 0.9, 1.0])),
        obs_dtype=data.draw(st.sampled_from([np.float32, np.float64, np.uint8])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ends = data.draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
    world = World(spec, rng, terminate=ends, truncate=ends / 2, cut=data.draw(st.sampled_from([0.0, 0.5])))
    buffer, naive = ReplayBuffer(spec), NaiveReplay(spec)
    for num_steps in data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6)):
        trajectory = world.trajectory(num_steps)
        buffer.add(trajectory)
        naive.add(trajectory)
        assert len(buffer) == num_envs * min(len(naive.steps), num_rows)
        if len(buffer):
            naive.check(buffer.sample(spec.capacity, rng))


def test_one_step_at_a_time_is_the_same() -> None:
    spec = vector_spec(n_step=3)
    world = World(spec, np.random.default_rng(0))
    whole, stepwise = ReplayBuffer(spec), ReplayBuffer(spec)
    for _ in range(4):
        trajectory = world.trajectory(9)
        whole.add(trajectory)
        for t in range(9):
            names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
            stepwise.add_step(*(getattr(trajectory, name)[t] for name in names))
        samples = [buffer.sample(24, np.random.default_rng(1)) for buffer in (whole, stepwise)]
        assert equal(*samples)


def test_uniform_frequencies() -> None:
    buffer = ReplayBuffer(vector_spec())
    buffer.add(World(buffer.spec, np.random.default_rng(0)).trajectory(20))
    rng = np.random.default_rng(1)
    drawn = np.concatenate([buffer.sample(24, rng).index for _ in range(1000)])
    counts = np.bincount(drawn - drawn.min(), minlength=24)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_samples_repeat_with_the_seed_and_do_not_share_memory() -> None:
    buffer = ReplayBuffer(vector_spec())
    buffer.add(World(buffer.spec, np.random.default_rng(0)).trajectory(20))
    first, second = (buffer.sample(8, np.random.default_rng(7)) for _ in range(2))
    assert equal(first, second)
    assert not np.shares_memory(first.obs, second.obs)
    out = Transitions.empty(buffer.spec, 8)
    assert buffer.sample(8, np.random.default_rng(7), out) is out
    assert equal(out, first)


@pytest.mark.parametrize("num_steps", [5, 12, 31])
def test_restores_to_the_bit(num_steps: int) -> None:
    spec = vector_spec(n_step=3)
    world = World(spec, np.random.default_rng(0), terminate=0.4)
    buffer, restored = ReplayBuffer(spec), ReplayBuffer(spec)
    buffer.add(world.trajectory(num_steps))
    restored.add(world.trajectory(3))  # what is loaded replaces what was there
    state = buffer.state_dict()
    restored.load_state_dict(state)
    assert state["obs"].shape[1] == min(num_steps, spec.num_rows)  # only what is filled
    for seed in range(3):
        assert equal(buffer.sample(24, np.random.default_rng(seed)), restored.sample(24, np.random.default_rng(seed)))
        later = world.trajectory(7)
        buffer.add(later)
        restored.add(later)


def test_state_is_a_copy() -> None:
    spec = vector_spec()
    world = World(spec, np.random.default_rng(0))
    buffer = ReplayBuffer(spec)
    buffer.add(world.trajectory(12))
    state = buffer.state_dict()
    before = {name: np.copy(value) for name, value in state.items()}
    buffer.add(world.trajectory(12))
    assert all(np.array_equal(state[name], before[name]) for name in state)


def test_state_of_another_spec_is_refused() -> None:
    buffer = ReplayBuffer(vector_spec())
    buffer.add(World(buffer.spec, np.random.default_rng(0)).trajectory(5))
    with pytest.raises(ArtifactError, match="same spec"):
        ReplayBuffer(vector_spec(obs_shape=(4,))).load_state_dict(buffer.state_dict())


def test_memory_is_near_the_raw_bytes() -> None:
    spec = ReplaySpec(200_000, 4, (17,), np.float32, (6,), np.float32)
    assert spec.raw_bytes == 200_000 * (17 * 4 + 6 * 4 + 4 + 2)
    buffer = ReplayBuffer(spec)
    world = World(spec, np.random.default_rng(0), terminate=0.0, truncate=0.001)
    trajectory = world.trajectory(1000)
    for _ in range(60):
        buffer.add(trajectory)
    assert len(buffer) == spec.capacity
    assert buffer.nbytes < 1.05 * spec.raw_bytes


def test_wider_floats_are_kept_as_the_spec_says() -> None:
    spec = vector_spec()
    trajectory = World(vector_spec(obs_dtype=np.float64), np.random.default_rng(0)).trajectory(6)
    buffer, naive = ReplayBuffer(spec), NaiveReplay(spec)
    buffer.add(trajectory)
    naive.add(trajectory)
    batch = buffer.sample(24, np.random.default_rng(0))
    assert batch.obs.dtype == np.float32
    naive.check(batch)


def test_read_only_arrays_are_taken() -> None:
    trajectory = World(vector_spec(), np.random.default_rng(0)).trajectory(6)
    trajectory.obs.flags.writeable = False
    buffer = ReplayBuffer(vector_spec())
    buffer.add(trajectory)
    assert len(buffer) == 12


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 25}, "no multiple of num_envs 2; use 24 or 26"),
        ({"capacity": 0}, "capacity is 0"),
        ({"n_step": 0}, "n_step is 0"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"obs_shape": (3, 0)}, "obs_shape"),
        ({"obs_dtype": np.dtype(object)}, "obs_dtype is object"),
        ({"frame_stack": 2}, "frame_stack 2 does not divide"),
    ],
)
def test_impossible_specs(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vector_spec(**change)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("obs", np.zeros((6, 2, 4), np.float32), r"obs of shape \(6, 2, 3\), found \(6, 2, 4\)"),
        ("action", np.zeros((6, 2), np.float32), "action of shape"),
        ("action", np.zeros((6, 2, 2), np.int64), "keeps action as float32, found int64"),
        ("reward", np.zeros((6, 3)), r"rewards \(T, 2\)"),
        ("terminated", np.zeros((6, 2)), "terminated as booleans"),
        ("truncated", np.zeros((5, 2), np.bool_), "truncated as booleans"),
        ("next_obs", np.zeros((5, 2, 3), np.float32), "next_obs of shape"),
    ],
)
def test_wrong_arrays_are_named(name: str, value: np.ndarray, message: str) -> None:
    trajectory = World(vector_spec(), np.random.default_rng(0)).trajectory(6)
    buffer = ReplayBuffer(vector_spec())
    with pytest.raises(ConfigError, match=message):
        buffer.add(Trajectory(**{**vars(trajectory), name: value}))
    assert len(buffer) == 0


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e39])
def test_rewards_that_cannot_be_kept(reward: float) -> None:
    trajectory = World(vector_spec(), np.random.default_rng(0)).trajectory(6)
    trajectory.reward[4, 1] = reward
    buffer = ReplayBuffer(vector_spec())
    with pytest.raises(EnvironmentFault, match="environment 1 gave reward .* at step 4"):
        buffer.add(trajectory)
    assert len(buffer) == 0


def test_sampling_what_is_not_there() -> None:
    buffer = ReplayBuffer(vector_spec())
    with pytest.raises(ConfigError, match="empty"):
        buffer.sample(4, np.random.default_rng(0))
    buffer.add(World(buffer.spec, np.random.default_rng(0)).trajectory(6))
    for batch_size in (0, 25):
        with pytest.raises(ConfigError, match=r"batch_size is .* \[1, 24\]"):
            buffer.sample(batch_size, np.random.default_rng(0))
    for spec, size in ((vector_spec(obs_dtype=np.float64), 8), (vector_spec(action_shape=(1,)), 8), (vector_spec(), 9)):
        with pytest.raises(ConfigError, match=r"Transitions\.empty"):
            buffer.sample(8, np.random.default_rng(0), Transitions.empty(spec, size))

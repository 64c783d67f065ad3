"""Replay in files, mapped or encrypted: the same transitions, restored states, and what can go wrong with a folder."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.algorithms.replay.storage import FolderStorage, MappedStorage
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.security.encryption import KEYS, new_entry
from tests.support.full_disk import no_file_larger_than
from tests.support.naive_replay import NaiveReplay, World, vector_spec

Kind = type[FolderStorage]
both = pytest.mark.parametrize("kind", [MappedStorage, SealedStorage])


@pytest.fixture(autouse=True, scope="module")
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEYS, new_entry("key"))
        yield


@contextmanager
def opened(kind: Kind, folder: Path, spare_fraction: float = 1.0) -> Iterator[Any]:
    """A storage that lets go of its folder, as the end of a process does."""
    storage = kind(folder, spare_fraction)
    try:
        yield storage
    finally:
        storage.close()


def contents(buffer: ReplayBuffer) -> list[np.ndarray]:
    """Some batches, as plain arrays."""
    batches = [buffer.sample(24, np.random.default_rng(seed)) for seed in range(4)]
    return [array for batch in batches for array in vars(batch).values()]


def assert_same(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


@both
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_goes_on_from_a_saved_state_whatever_was_written_after_it(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    k = data.draw(st.integers(1, 3))
    spec = vector_spec(n_step=2, frame_stack=k, obs_shape=(3 * k,))
    ends, padding = data.draw(st.sampled_from([0.0, 0.2, 0.8])), data.draw(st.sampled_from(["reset", "zero"]))
    world = World(spec, np.random.default_rng(0), terminate=ends, truncate=ends / 2, cut=0.4, padding=padding)
    naive, folder = NaiveReplay(spec), tmp_path_factory.mktemp("replay")
    with opened(kind, folder, spare_fraction=2.0) as storage:
        buffer = ReplayBuffer(spec, storage)
        for num_steps in data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)):
            trajectory = world.trajectory(num_steps)
            buffer.add(trajectory)
            naive.add(trajectory)
        state, saved = buffer.state_dict(), contents(buffer)
        for num_steps in data.draw(st.lists(st.integers(1, 12), max_size=2)):  # at most the 24 spared rows
            buffer.add(world.trajectory(num_steps))
    with opened(kind, folder, spare_fraction=2.0) as storage:
        restored = ReplayBuffer(spec, storage)
        assert len(restored) == 0  # nothing is taken over unasked
        restored.load_state_dict(state)
        assert_same(contents(restored), saved)
        for num_steps in (3, 15):
            trajectory = world.trajectory(num_steps)
            restored.add(trajectory)
            naive.add(trajectory)
            naive.check(restored.sample(24, np.random.default_rng(1)))


@both
def test_a_break_after_the_saved_state_is_forgotten(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec(n_step=3)
    world = World(spec, np.random.default_rng(0), terminate=0.0, truncate=0.0, cut=0.0)
    first, second = world.trajectory(5), world.trajectory(5)
    with opened(kind, tmp_path) as storage:
        buffer, naive = ReplayBuffer(spec, storage), NaiveReplay(spec)
        buffer.add(first)
        state = buffer.state_dict()
        world.cut = 1.0
        buffer.add(world.trajectory(2))  # begins elsewhere, which marks the row before it
        buffer.load_state_dict(state)
        for trajectory in (first, second):
            naive.add(trajectory)
        buffer.add(second)  # goes on where the saved state ended
        naive.check(buffer.sample(24, np.random.default_rng(0)))


@both
def test_final_observations_written_over_after_the_saved_state_are_passed_over(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    world = World(spec, np.random.default_rng(0), terminate=1.0, cut=0.0)
    with opened(kind, tmp_path, spare_fraction=2.0) as storage:
        buffer, naive = ReplayBuffer(spec, storage), NaiveReplay(spec)
        # Many ends that left the window, few in it, then many that take the place of the first ones.
        for terminate, num_steps in ((1.0, 24), (0.1, 12)):
            world.terminate = terminate
            world.truncate = 0.0
            trajectory = world.trajectory(num_steps)
            buffer.add(trajectory)
            naive.add(trajectory)
        state = buffer.state_dict()
        world.terminate = 1.0
        buffer.add(world.trajectory(24))
        buffer.load_state_dict(state)
        naive.check(buffer.sample(24, np.random.default_rng(0)))
        naive.check(buffer.sample(24, np.random.default_rng(1)))


@both
def test_prioritised_goes_on_from_a_saved_state(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    world, rng = World(spec, np.random.default_rng(0)), np.random.default_rng(1)
    with opened(kind, tmp_path) as storage:
        buffer = PrioritizedReplay(spec, storage=storage)
        buffer.add(world.trajectory(30))
        buffer.update_priorities(buffer.sample(24, rng).index, rng.exponential(size=24))
        state, saved = buffer.state_dict(), contents(buffer)
        buffer.add(world.trajectory(5))
        buffer.update_priorities(buffer.sample(24, rng).index, rng.exponential(size=24))
    with opened(kind, tmp_path) as storage:
        restored = PrioritizedReplay(spec, storage=storage)
        restored.load_state_dict(state)
        assert_same(contents(restored), saved)


WRITER = """
import sys
from pathlib import Path
import numpy as np, safetensors.numpy
from tests.support.naive_replay import World, vector_spec
from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.storage import MappedStorage

folder = Path(sys.argv[1])
spec = vector_spec()
world = World(spec, np.random.default_rng(0))
buffer = ReplayBuffer(spec, MappedStorage(folder, 10_000.0))
buffer.add(world.trajectory(17))
state = {name: np.asarray(value) for name, value in buffer.state_dict().items()}
safetensors.numpy.save_file(state, folder / "state.safetensors")
print("saved", flush=True)
while True:
    buffer.add(world.trajectory(5))
"""


def test_a_killed_process_leaves_the_saved_state_whole(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"saved\n"
        deadline = time.monotonic() + 30
        while np.fromfile(tmp_path / "journal.bin", np.int64)[2] < 100:  # it goes on writing
            assert writer.poll() is None
            assert time.monotonic() < deadline
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    spec = vector_spec()
    in_memory, world = ReplayBuffer(spec), World(spec, np.random.default_rng(0))
    in_memory.add(world.trajectory(17))
    state: dict[str, Any] = dict(safetensors.numpy.load_file(tmp_path / "state.safetensors"))
    with opened(MappedStorage, tmp_path, 10_000.0) as storage:
        restored = ReplayBuffer(spec, storage)
        restored.load_state_dict({name: value.item() if value.ndim == 0 else value for name, value in state.items()})
        assert_same(contents(restored), contents(in_memory))


@both
def test_a_state_whose_rows_were_overwritten_is_refused(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    world = World(spec, np.random.default_rng(0))
    with opened(kind, tmp_path, spare_fraction=0.5) as storage:  # six rows
        buffer = ReplayBuffer(spec, storage)
        buffer.add(world.trajectory(30))
        state = buffer.state_dict()
        buffer.add(world.trajectory(6))
        buffer.load_state_dict(state)
        buffer.add(world.trajectory(7))
        with pytest.raises(ArtifactError, match="7 steps were written .* 6 are spared"):
            buffer.load_state_dict(state)
        assert len(buffer) == 24


@both
def test_states_of_an_earlier_run_end_with_the_first_row_of_the_next(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    world = World(spec, np.random.default_rng(0))
    with opened(kind, tmp_path) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.add(world.trajectory(8))
        state = buffer.state_dict()
    with opened(kind, tmp_path) as storage:
        other = ReplayBuffer(spec, storage)
        other.add(world.trajectory(9))
        with pytest.raises(ArtifactError, match="another run wrote to it"):
            other.load_state_dict(state)
    with opened(kind, tmp_path / "empty") as storage, pytest.raises(ArtifactError, match="emptied"):
        ReplayBuffer(spec, storage).load_state_dict(state)


@both
def test_states_do_not_move_between_kinds_of_storage(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    trajectory = World(spec, np.random.default_rng(0)).trajectory(8)
    with opened(kind, tmp_path) as storage:
        in_files, in_memory = ReplayBuffer(spec, storage), ReplayBuffer(spec)
        in_files.add(trajectory)
        in_memory.add(trajectory)
        for source, target in ((in_files, in_memory), (in_memory, in_files)):
            with pytest.raises(ArtifactError, match="another kind of storage"):
                target.load_state_dict(source.state_dict())


@both
def test_folder_of_another_buffer_is_refused(tmp_path: Path, kind: Kind) -> None:
    spec = vector_spec()
    with opened(kind, tmp_path) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.add(World(spec, np.random.default_rng(0)).trajectory(3))
        buffer.state_dict()
    with opened(kind, tmp_path) as storage, pytest.raises(ConfigError, match="another capacity"):
        ReplayBuffer(vector_spec(capacity=48), storage)


@both
def test_folder_is_held_by_one(tmp_path: Path, kind: Kind) -> None:
    with opened(kind, tmp_path), pytest.raises(ArtifactError, match="in use by another process"):
        kind(tmp_path)
    kind(tmp_path).close()


def test_no_room_on_the_disk_is_an_error_at_once(tmp_path: Path) -> None:
    spec = ReplaySpec(10_000, 1, (17,), np.float32, (6,), np.float32)
    with (
        opened(MappedStorage, tmp_path) as storage,
        no_file_larger_than(100_000),
        pytest.raises(ArtifactError) as error,
    ):
        ReplayBuffer(spec, storage)
    assert str(tmp_path) in str(error.value)
    assert "free space" in str(error.value)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
def test_disk_that_fills_up_keeps_what_is_whole(tmp_path: Path, kind: Callable[..., Any]) -> None:
    # Only the side store grows later: every step ends an episode here, each leaves a final observation.
    spec = ReplaySpec(200, 1, (17,), np.float32, (6,), np.float32)
    world = World(spec, np.random.default_rng(0), terminate=1.0)
    with opened(MappedStorage, tmp_path) as storage:
        buffer, naive = kind(spec, storage=storage), NaiveReplay(spec)
        trajectory = world.trajectory(100)
        with no_file_larger_than(1000), pytest.raises(ArtifactError, match="free space"):
            buffer.add(trajectory)
        assert 0 < len(buffer) < 100
        naive.add(trajectory)
        del naive.steps[len(buffer) :]
        naive.check(buffer.sample(50, np.random.default_rng(0)))
        trajectory = world.trajectory(60)  # room again
        buffer.add(trajectory)
        naive.add(trajectory)
        naive.check(buffer.sample(50, np.random.default_rng(1)))


@both
def test_bad_spare_fraction(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(ConfigError, match="spare_fraction is -1"):
        kind(tmp_path, spare_fraction=-1)

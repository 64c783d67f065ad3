"""Replay in encrypted files: the numbers of one in memory, nothing readable on the disk, and every change noticed."""

import errno
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.algorithms.replay.storage import MappedStorage
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system import files
from loomrl.system.files import sums
from loomrl.system.security.encryption import KEYS, new_entry, read_private
from loomrl.types import Trajectory
from tests.support.full_disk import no_file_larger_than
from tests.support.naive_replay import World, vector_spec

SPARE = 2.0
BLOCK, TAG = 8192, 16  # of rows of 1200 bytes, which blocks therefore cut
NEWEST = 44 * 1200 // BLOCK  # the block of row 44 of the first environment


@pytest.fixture(autouse=True, scope="module")
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEYS, new_entry("first"))
        yield


@contextmanager
def sealed(folder: Path, **options: Any) -> Iterator[SealedStorage]:
    """A storage that lets go of its folder, and of what was not flushed, as the end of a process does."""
    storage = SealedStorage(folder, **{"spare_fraction": SPARE, **options})
    try:
        yield storage
    finally:
        storage.close()


def wide_spec(**changes: Any) -> ReplaySpec:
    """30 rows of 2 environments; 1200 bytes a frame, so that both have several blocks."""
    k = changes.get("frame_stack", 1)
    return vector_spec(**{"capacity": 60, "obs_shape": (300 * k,), **changes})


def contents(buffer: Any, seeds: int = 4) -> list[np.ndarray]:
    """Some batches, as plain arrays."""
    batches = [buffer.sample(24, np.random.default_rng(seed)) for seed in range(seeds)]
    return [array for batch in batches for array in vars(batch).values()]


def assert_same(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def kept_state(state: dict[str, Any]) -> dict[str, Any]:
    """A state that later changes of the buffer do not reach."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in state.items()}


# --- the same numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 3 * BLOCK, 1 << 30])
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_equals_a_replay_in_memory_whatever_is_done_to_it(
    kind: Callable[..., Any], cache_bytes: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = wide_spec(frame_stack=data.draw(st.integers(1, 3)), n_step=data.draw(st.integers(1, 4)))
    ends = data.draw(st.sampled_from([0.0, 0.2, 0.9]))
    world = World(spec, np.random.default_rng(0), terminate=ends, truncate=ends / 2, padding="random")
    folder, in_memory, rng = tmp_path_factory.mktemp("replay"), kind(spec), np.random.default_rng(1)
    storage = SealedStorage(folder, SPARE, cache_bytes=cache_bytes)
    buffer = kind(spec, storage=storage)
    states: list[dict[str, Any]] = []
    for what in data.draw(st.lists(st.sampled_from(["add", "add", "sample", "save", "restart"]), max_size=12)):
        if what == "add":
            trajectory = world.trajectory(data.draw(st.integers(1, 20)))
            buffer.add(trajectory)
            in_memory.add(trajectory)
        elif what == "sample" and len(in_memory):
            assert_same(contents(buffer), contents(in_memory))
            if kind is PrioritizedReplay:
                index, priority = in_memory.sample(24, rng).index, rng.exponential(size=24)
                buffer.update_priorities(index, priority)
                in_memory.update_priorities(index, priority)
        elif what == "save":
            states = [kept_state(buffer.state_dict()), kept_state(in_memory.state_dict())]
        elif what == "restart" and states:
            storage.close()
            storage = SealedStorage(folder, SPARE, cache_bytes=cache_bytes)
            buffer, in_memory = kind(spec, storage=storage), kind(spec)
            with suppress(ArtifactError):  # too much was written since
                buffer.load_state_dict(states[0])
                in_memory.load_state_dict(states[1])
            assert len(buffer) == len(in_memory)
    if len(in_memory):
        assert_same(contents(buffer), contents(in_memory))
    storage.close()


def test_a_trajectory_longer_than_the_ring(tmp_path: Path) -> None:
    spec = wide_spec()
    trajectory, in_memory = World(spec, np.random.default_rng(0)).trajectory(200), ReplayBuffer(spec)
    in_memory.add(trajectory)
    with sealed(tmp_path, cache_bytes=0) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.add(trajectory)
        assert_same(contents(buffer), contents(in_memory))


def shared_memory() -> int:
    """Bytes of it that this process touches now."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024


def test_memory_stays_near_the_cache(tmp_path: Path) -> None:
    spec = vector_spec(capacity=40_000, obs_shape=(300,))
    obs, cache_bytes = np.ones((500, 2, 300), np.float32), 4 << 20
    flags = np.zeros((500, 2), np.bool_)
    trajectory = Trajectory(obs, obs[..., :2].copy(), flags * 1.0, flags, flags, obs)
    before = shared_memory()
    with sealed(tmp_path, spare_fraction=0.02, cache_bytes=cache_bytes) as storage:
        buffer = ReplayBuffer(spec, storage)
        for _ in range(40):
            buffer.add(trajectory)
            buffer.sample(256, np.random.default_rng(0))
            assert shared_memory() - before < 3 * cache_bytes  # with a batch, a trajectory and the small arrays
    assert sum(path.stat().st_size for path in tmp_path.glob("obs.*")) > 48_000_000


def test_a_value_that_returns_to_what_it_was_is_written_again(tmp_path: Path) -> None:
    with sealed(tmp_path) as storage:
        array = storage.array("flags", (10,), np.int64)
        for value in (1, 2, 1):
            array[3] = value
            storage.flush()
    with sealed(tmp_path) as storage:
        assert storage.array("flags", (10,), np.int64)[3] == 1


def test_arrays_made_before_one_grew_are_still_the_same(tmp_path: Path) -> None:
    with sealed(tmp_path) as storage:
        small = storage.array("finals", (10,), np.int64)
        small[3] = 1
        large = storage.array("finals", (100_000,), np.int64)
        small[4] = 2
        large[99_999] = 3
        storage.flush()
    with sealed(tmp_path) as storage:
        assert storage.array("finals", (100_000,), np.int64)[[3, 4, 99_998, 99_999]].tolist() == [1, 2, 0, 3]


def test_files_do_not_grow_with_every_flush(tmp_path: Path) -> None:
    spec = wide_spec()
    world, sizes = World(spec, np.random.default_rng(0), terminate=0.0, truncate=0.0, cut=0.0), []
    with sealed(tmp_path) as storage:
        buffer = ReplayBuffer(spec, storage)
        for _ in range(40):
            buffer.add(world.trajectory(10))
            buffer.state_dict()
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert sizes[-1] == sizes[20]


# --- what the disk shows ----------------------------------------------------------------------------------------

PLANTED = b"A number that nobody else may see"


def planted(spec: ReplaySpec, num_steps: int) -> Trajectory:
    """Steps whose observations and actions hold the pattern."""
    obs = np.frombuffer(PLANTED, np.uint8) + np.zeros((num_steps, spec.num_envs, 1), np.uint8)
    flags = np.zeros((num_steps, spec.num_envs), np.bool_)
    ends = flags.copy()
    ends[::5] = True
    return Trajectory(obs, obs.copy(), flags * 1.0, ends, flags, obs)


@pytest.mark.parametrize(("kind", "readable"), [(MappedStorage, True), (SealedStorage, False)])
def test_nothing_readable_touches_the_disk(tmp_path: Path, kind: Callable[..., Any], readable: bool) -> None:
    width = len(PLANTED)
    spec = ReplaySpec(400, 2, (width,), np.uint8, (width,), np.uint8)
    storage = kind(tmp_path)
    buffer = PrioritizedReplay(spec, storage=storage)
    for _ in range(5):
        buffer.add(planted(spec, 100))
        buffer.state_dict()
    storage.close()
    found = {path.stem for path in tmp_path.iterdir() if PLANTED in path.read_bytes()}
    assert found == ({"obs", "action", "finals"} if readable else set())
    if not readable:
        assert {path.suffix for path in tmp_path.iterdir() if path.name != ".lock"} == {".sealed"}


def test_core_dumps_leave_plain_values_out(tmp_path: Path) -> None:
    with sealed(tmp_path) as storage:
        buffer = ReplayBuffer(wide_spec(), storage)
        mappings = Path("/proc/self/smaps").read_text().split("VmFlags:")
        flags = [
            after.split("\n")[0].split() for before, after in itertools.pairwise(mappings) if "memfd:replay" in before
        ]
        assert len(flags) >= 9
        assert all("dd" in each for each in flags)
        assert len(buffer) == 0


def saved(folder: Path, **options: Any) -> tuple[ReplaySpec, dict[str, Any], list[np.ndarray]]:
    """A folder that holds a state, the state, and samples from it."""
    spec = wide_spec()
    with sealed(folder, **options) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.add(World(spec, np.random.default_rng(0)).trajectory(45))
        return spec, kept_state(buffer.state_dict()), contents(buffer)


def restored(folder: Path, spec: ReplaySpec, state: dict[str, Any]) -> list[np.ndarray]:
    """Samples from what a new process finds in a folder."""
    with sealed(folder) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.load_state_dict(state)
        return contents(buffer)


def places(folder: Path, name: str) -> np.ndarray:
    """Of an array's blocks: the numbers of their frames."""
    with np.load(io.BytesIO(read_private(folder / "index.sealed"))) as index:
        return index[name]["place"]


def frames(folder: Path) -> np.ndarray:
    """The frames of `obs`, to be changed in place."""
    return np.memmap(folder / "obs.sealed", np.uint8, "r+").reshape(-1, BLOCK + TAG)


def flip(folder: Path) -> None:
    frames(folder)[places(folder, "obs")[NEWEST], 77] ^= 1


def zero(folder: Path) -> None:
    frames(folder)[places(folder, "obs")[NEWEST]] = 0


def swap(folder: Path) -> None:
    one, other = places(folder, "obs")[[NEWEST, NEWEST - 1]]
    file = frames(folder)
    file[[one, other]] = file[[other, one]]


def shorten(folder: Path) -> None:
    os.truncate(folder / "obs.sealed", places(folder, "obs")[NEWEST] * (BLOCK + TAG) + 100)


def remove(folder: Path) -> None:
    (folder / "obs.sealed").unlink()


@pytest.mark.parametrize("change", [flip, zero, swap, shorten, remove])
def test_a_changed_block_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    spec, state, _ = saved(tmp_path)
    change(tmp_path)
    with pytest.raises(ArtifactError, match=r"obs\.sealed was changed: its block \d+ cannot be decrypted"):
        restored(tmp_path, spec, state)


def test_a_block_that_is_put_back_is_noticed(tmp_path: Path) -> None:
    spec, state, _ = saved(tmp_path)
    before = frames(tmp_path)[places(tmp_path, "obs")[NEWEST]].copy()
    with sealed(tmp_path) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.load_state_dict(state)
        buffer.add(World(spec, np.random.default_rng(1)).trajectory(20))
        state = kept_state(buffer.state_dict())
    frames(tmp_path)[places(tmp_path, "obs")[NEWEST]] = before
    with pytest.raises(ArtifactError, match=rf"obs\.sealed was changed: its block {NEWEST} "):
        restored(tmp_path, spec, state)


@pytest.mark.parametrize("name", ["journal", "flags", "final_keys"])
def test_a_change_of_what_is_read_as_a_whole_is_noticed_at_once(tmp_path: Path, name: str) -> None:
    spec, _, _ = saved(tmp_path)
    path = tmp_path / f"{name}.sealed"
    path.write_bytes(bytes(path.stat().st_size))
    with sealed(tmp_path) as storage, pytest.raises(ArtifactError, match=rf"{name}\.sealed was changed: its block 0"):
        ReplayBuffer(spec, storage)


def test_a_changed_index_is_noticed(tmp_path: Path) -> None:
    spec, state, _ = saved(tmp_path)
    index = tmp_path / "index.sealed"
    whole = index.read_bytes()
    index.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    with pytest.raises(ArtifactError, match=r"index\.sealed was changed"):
        SealedStorage(tmp_path)
    index.write_bytes(read_private_of(whole, tmp_path))
    with pytest.raises(ArtifactError, match=r"index\.sealed was changed: it is not encrypted"):
        SealedStorage(tmp_path)
    index.unlink()
    with pytest.raises(ArtifactError, match="it was emptied"):
        restored(tmp_path, spec, state)


def read_private_of(data: bytes, folder: Path) -> bytes:
    (folder / "copy").write_bytes(data)
    return read_private(folder / "copy")


def test_frames_open_with_the_key_and_nonces_of_the_index_for_their_own_place_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    with np.load(io.BytesIO(read_private(tmp_path / "index.sealed"))) as index:
        cipher, place, nonce = AESGCM(index["key"].tobytes()), *index["obs"][NEWEST].tolist()
    frame = frames(tmp_path)[place].tobytes()
    row = np.frombuffer(cipher.decrypt(nonce, frame, f"obs/{NEWEST}".encode()), np.float32)
    assert (np.diff(row[:200]) == 1).any()  # observations of `World` count on
    with pytest.raises(InvalidTag):
        cipher.decrypt(nonce, frame, f"obs/{NEWEST - 1}".encode())


# --- keys -------------------------------------------------------------------------------------------------------


def test_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = new_entry("old"), new_entry("new")
    monkeypatch.setenv(KEYS, old)
    spec, state, samples = saved(tmp_path)
    monkeypatch.setenv(KEYS, f"{new},{old}")
    SealedStorage(tmp_path).close()
    monkeypatch.setenv(KEYS, new)
    assert_same(restored(tmp_path, spec, state), samples)
    monkeypatch.setenv(KEYS, old)
    with pytest.raises(ConfigError, match="is encrypted with the key 'new', which is not among"):
        SealedStorage(tmp_path)


@pytest.mark.parametrize("entries", ["", new_entry("another")], ids=["none", "another"])
def test_without_its_key_nothing_is_opened_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: str
) -> None:
    spec, state, samples = saved(tmp_path)
    before = sums(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv(KEYS, entries)
        with pytest.raises(ConfigError, match="is encrypted with the key 'first', which is not among"):
            SealedStorage(tmp_path)
    assert sums(tmp_path) == before
    assert_same(restored(tmp_path, spec, state), samples)


def test_no_keys_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS)
    with pytest.raises(ConfigError, match="no keys are configured"):
        SealedStorage(tmp_path)


def test_plain_and_encrypted_files_do_not_mix(tmp_path: Path) -> None:
    spec, plain, encrypted = wide_spec(), tmp_path / "plain", tmp_path / "encrypted"
    storage = MappedStorage(plain)
    ReplayBuffer(spec, storage).add(World(spec, np.random.default_rng(0)).trajectory(5))
    storage.close()
    saved(encrypted)
    before = sums(tmp_path)
    with pytest.raises(ConfigError, match="holds plain files"):
        SealedStorage(plain)
    with pytest.raises(ConfigError, match=f"{encrypted} is encrypted with the key 'first'; configure the keys"):
        MappedStorage(encrypted)
    assert sums(tmp_path) == before


# --- crashes and full disks -------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here: nothing after it reaches the disk."""


def crash_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Before the disk is told something for the `number`th time."""
    left = itertools.count(number, -1)
    for name in ("pwrite", "fsync", "replace", "posix_fallocate"):
        inner = getattr(os, name)

        def told(*arguments: Any, inner: Callable[..., Any] = inner) -> Any:
            if next(left) <= 0:
                raise Crash
            return inner(*arguments)

        patch.setattr(os, name, told)


def test_a_crash_anywhere_in_a_flush_leaves_one_state_or_the_other(tmp_path: Path) -> None:
    spec, state, samples = saved(tmp_path / "start")
    for number in itertools.count():
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)
        with sealed(folder) as storage:
            buffer = ReplayBuffer(spec, storage)
            buffer.load_state_dict(state)
            buffer.add(World(spec, np.random.default_rng(1)).trajectory(30))
            with pytest.MonkeyPatch.context() as patch, suppress(Crash):
                crash_at(patch, number)
                later = kept_state(buffer.state_dict())
                break
        assert_same(restored(folder, spec, state), samples)
    assert number > 20  # moments
    assert_same(restored(folder, spec, state), samples)
    assert len(restored(folder, spec, later)) == len(samples)


def test_frames_are_on_the_disk_before_the_index_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Any]] = []
    for name in ("pwrite", "fsync", "replace"):
        inner = getattr(os, name)

        def noted(first: Any, *rest: Any, inner: Callable[..., Any] = inner, name: str = name) -> Any:
            told.append((name, first))
            return inner(first, *rest)

        monkeypatch.setattr(os, name, noted)
    saved(tmp_path)
    replaced = max(at for at, (name, _) in enumerate(told) if name == "replace")
    written = {call: at for at, call in enumerate(told) if call[0] == "pwrite"}  # the last of each file
    assert len(written) > 4
    for (_, handle), at in written.items():
        assert ("fsync", handle) in told[at:replaced]


WRITER = """
import os, sys
from pathlib import Path
import numpy as np, safetensors.numpy
from tests.support.naive_replay import vector_spec
from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.types import Trajectory

folder, states = Path(sys.argv[1]), Path(sys.argv[2])
spec = vector_spec(capacity=2000, obs_shape=(300,))
buffer = ReplayBuffer(spec, SealedStorage(folder, 1.0, cache_bytes=1 << 18))
if states.exists():
    state = safetensors.numpy.load_file(states)
    buffer.load_state_dict({name: value.item() if value.ndim == 0 else value for name, value in state.items()})
row = 0 if not states.exists() else int(state["num_written"])
flags = np.zeros((50, 2), np.bool_)
while True:
    for _ in range(4):
        number = (np.arange(row, row + 50)[:, None] * 2 + np.arange(2)).astype(np.float32)
        obs = np.repeat(number[..., None], 300, -1)
        buffer.add(Trajectory(obs, obs[..., :2].copy(), number.astype(np.float64), flags, flags, obs + 2))
        buffer.sample(64, np.random.default_rng(row))
        row += 50
    safetensors.numpy.save_file(
        {name: np.asarray(value) for name, value in buffer.state_dict().items()}, states.with_suffix(".new")
    )
    os.replace(states.with_suffix(".new"), states)
    print(row, flush=True)
"""


def test_a_process_killed_at_any_moment_goes_on_from_its_last_state(tmp_path: Path) -> None:
    rng, spec, rows = np.random.default_rng(0), vector_spec(capacity=2000, obs_shape=(300,)), 0
    folder, states = tmp_path / "replay", tmp_path / "state.safetensors"
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(states)], stdout=subprocess.PIPE, env=environment
        ) as writer:
            assert writer.stdout is not None
            assert int(writer.stdout.readline()) == rows + 200  # it went on where the last one was killed
            time.sleep(rng.uniform(0.0, 0.4))
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        state = {name: np.asarray(value) for name, value in safetensors.numpy.load_file(states).items()}
        rows = int(state["num_written"])
        with sealed(folder, spare_fraction=1.0) as storage:
            buffer = ReplayBuffer(spec, storage)
            buffer.load_state_dict({name: value.item() if value.ndim == 0 else value for name, value in state.items()})
            batch = buffer.sample(2000, np.random.default_rng(0))
        for array, later in ((batch.obs, 0), (batch.action, 0), (batch.reward[:, None], 0), (batch.next_obs, 2)):
            assert (array == (batch.index + later).astype(np.float32)[:, None]).all()


def test_a_full_disk_is_an_error_at_the_start(tmp_path: Path) -> None:
    with sealed(tmp_path) as storage, no_file_larger_than(100_000), pytest.raises(ArtifactError) as error:
        ReplayBuffer(wide_spec(capacity=6000), storage)
    assert str(tmp_path) in str(error.value)
    assert "free space" in str(error.value)


@pytest.mark.parametrize("room", [1000, 70_000, 150_000])  # for nothing, for some of it, for all but `obs`
def test_a_disk_that_fills_up_keeps_the_saved_state(tmp_path: Path, room: int) -> None:
    spec, state, samples = saved(tmp_path)
    in_memory = ReplayBuffer(spec)
    world = World(spec, np.random.default_rng(0))
    in_memory.add(world.trajectory(45))
    with sealed(tmp_path) as storage:
        buffer = ReplayBuffer(spec, storage)
        buffer.load_state_dict(state)
        trajectory = world.trajectory(25)
        for each in (buffer, in_memory):
            each.add(trajectory)
        for _ in range(2):
            with no_file_larger_than(room), pytest.raises(ArtifactError, match="cannot write"):
                buffer.state_dict()
        shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
        assert_same(restored(tmp_path / "copy", spec, state), samples)
        later = kept_state(buffer.state_dict())  # room again
    assert_same(restored(tmp_path, spec, later), contents(in_memory))


def test_a_write_that_stops_half_way_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    with sealed(tmp_path) as storage:
        buffer = ReplayBuffer(wide_spec(), storage)
        buffer.add(World(wide_spec(), np.random.default_rng(0)).trajectory(5))
        monkeypatch.setattr(os, "pwrite", lambda handle, data, place: whole(handle, data[:100], place))
        with pytest.raises(ArtifactError, match="No space left"):
            buffer.state_dict()


def refuse(folder: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_index_that_reached_the_disk_though_writing_it_failed(tmp_path: Path) -> None:
    spec, state, samples = saved(tmp_path / "start")
    for number in range(20):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)
        with sealed(folder) as storage, pytest.MonkeyPatch.context() as patch:
            buffer = ReplayBuffer(spec, storage)
            buffer.load_state_dict(state)
            world = World(spec, np.random.default_rng(1))
            buffer.add(world.trajectory(20))
            patch.setattr(files, "sync_folder", refuse)
            with pytest.raises(ArtifactError, match="cannot write"):
                buffer.state_dict()
            patch.undo()
            buffer.add(world.trajectory(10))
            crash_at(patch, number)
            with suppress(Crash):
                buffer.state_dict()
        assert_same(restored(folder, spec, state), samples)


def test_what_a_killed_flush_left_is_removed(tmp_path: Path) -> None:
    spec, state, samples = saved(tmp_path)
    (tmp_path / ".index.sealed.half").write_bytes(b"half")
    assert_same(restored(tmp_path, spec, state), samples)
    assert not list(tmp_path.glob(".index*"))

"""What was observed is unreadable on the disk without its key, whole with it, and never half-read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from loomrl.algorithms.base import TrainingContext
from loomrl.algorithms.dqn import learner as dqn
from loomrl.algorithms.off_policy import replay_storage
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.storage import MappedStorage
from loomrl.cli.main import app
from loomrl.errors import ArtifactError, ConfigError
from loomrl.evaluation.tables import read_table, write_table
from loomrl.system.security import encryption
from loomrl.system.security.encryption import (
    KEYS,
    KEYS_FILE,
    is_encrypted,
    keyring,
    new_entry,
    read_private,
    write_private,
)
from loomrl.training.checkpoints import Checkpoint, CheckpointStore

TABLE = pa.table({"obs_0": np.arange(1_000) * 0.5, "reward": np.ones(1_000)})


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    entry = new_entry("2026")
    monkeypatch.setenv(KEYS, entry)
    return entry


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1_000])
def test_whole_files_of_every_number_of_frames(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(encryption, "_FRAME", 64)
    data = np.random.default_rng(size).bytes(size)
    write_private(tmp_path / "file", data)
    assert read_private(tmp_path / "file") == data
    assert size < 16 or data[:16] not in (tmp_path / "file").read_bytes()


def test_equal_content_gives_equal_bytes_and_another_content_another_key_stream(key: str, tmp_path: Path) -> None:
    for name, data in (("one", b"a" * 100), ("same", b"a" * 100), ("other", b"a" * 99 + b"b")):
        write_private(tmp_path / name, data)
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same
    assert one[-116:-17] != other[-116:-17]


def _flip(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        _flip(-1),
        _flip(200),
        _flip(30),  # the salt
        lambda data: data[:-80],  # the last frame is missing
        lambda data: data + b"\0",
        lambda data: data[:53] + data[53 + 80 : 53 + 160] + data[53 : 53 + 80] + data[53 + 160 :],  # frames swapped
    ],
)
def test_a_changed_file_is_never_read(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(encryption, "_FRAME", 64)
    path = tmp_path / "file"
    write_private(path, np.random.default_rng(1).bytes(64 * 4))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArtifactError, match=r"file was changed, or '2026' is another key now"):
        read_private(path)


def test_keys_rotate(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "old", b"before")
    monkeypatch.setenv(KEYS, f"{new_entry('2027')},{key}")
    write_private(tmp_path / "new", b"after")
    assert (read_private(tmp_path / "old"), read_private(tmp_path / "new")) == (b"before", b"after")
    monkeypatch.setenv(KEYS, key)
    with pytest.raises(ConfigError, match="new is encrypted with the key '2027', which is not among"):
        read_private(tmp_path / "new")
    monkeypatch.setenv(KEYS, new_entry("2026"))
    with pytest.raises(ArtifactError, match="'2026' is another key now"):
        read_private(tmp_path / "old")
    monkeypatch.delenv(KEYS)
    with pytest.raises(ConfigError, match="encrypted with the key '2026'"):
        read_private(tmp_path / "old")


def test_keys_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{new_entry('b')}\n{new_entry('a')}\n")
    monkeypatch.setenv(KEYS_FILE, str(path))
    ring = keyring()
    assert ring is not None
    assert (ring.active, sorted(ring.keys)) == ("b", ["a", "b"])
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no key"):
        keyring()
    path.unlink()
    with pytest.raises(ConfigError, match="without its keys nothing may be written"):
        keyring()


@pytest.mark.parametrize("entry", ["secret", "a:AAAA", ":" + "A" * 44, "a:not base64", f"{'x' * 65}:{'A' * 43}="])
def test_a_key_that_is_none_is_refused_and_not_shown(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS, entry)
    with pytest.raises(ConfigError, match="entry 1: write ID:KEY") as raised:
        keyring()
    assert entry not in str(raised.value)


def test_tables_and_checkpoints_are_encrypted_and_read_again(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path / "steps.parquet", TABLE)
    assert is_encrypted(tmp_path / "steps.parquet")
    assert read_table(tmp_path / "steps.parquet").equals(TABLE)
    arrays = {"replay": np.arange(64, dtype=np.float32)}
    with CheckpointStore(tmp_path / "checkpoints", keep=1) as store:
        store.save(Checkpoint(7, arrays, {"env_steps": 7}))
        found = store.newest()
    assert found is not None
    assert found.arrays["replay"].tolist() == arrays["replay"].tolist()
    (written,) = (tmp_path / "checkpoints").glob("step-*/arrays.safetensors")
    assert arrays["replay"].tobytes()[:64] not in written.read_bytes()
    monkeypatch.delenv(KEYS)
    with pytest.raises(ConfigError, match="encrypted with the key"):
        read_table(tmp_path / "steps.parquet")
    with CheckpointStore(tmp_path / "checkpoints", keep=1) as store, pytest.raises(ConfigError, match="encrypted with"):
        store.newest()  # passed over as corrupt ones are, it would be removed by the next that is saved
    assert written.exists()


def test_plain_files_stay_readable_with_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "steps.parquet", TABLE)
    assert not is_encrypted(tmp_path / "steps.parquet")
    monkeypatch.setenv(KEYS, new_entry("later"))
    assert read_table(tmp_path / "steps.parquet", ["reward"]).column_names == ["reward"]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CliRunner().invoke(app, ["keys", "new", "k1"])
    monkeypatch.setenv(KEYS, made.stdout.strip())
    write_private(tmp_path / "sealed", b"plain content")
    done = CliRunner().invoke(app, ["keys", "decrypt", str(tmp_path / "sealed"), "--output", str(tmp_path / "plain")])
    assert done.exit_code == 0
    assert (tmp_path / "plain").read_bytes() == b"plain content"
    done = CliRunner().invoke(app, ["keys", "decrypt", str(tmp_path / "absent"), "--output", str(tmp_path / "plain")])
    assert isinstance(done.exception, ArtifactError)
    assert (tmp_path / "plain").read_bytes() == b"plain content"


@pytest.mark.parametrize(("has_key", "kind"), [(True, SealedStorage), (False, MappedStorage)])
def test_a_replay_on_the_disk(has_key: bool, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_key:
        monkeypatch.setenv(KEYS, new_entry("2026"))
    storage = replay_storage(
        dqn.DQNConfig(replay_storage="disk"), TrainingContext(folder=tmp_path, segment_env_steps=64)
    )
    assert isinstance(storage, kind)
    storage.close()

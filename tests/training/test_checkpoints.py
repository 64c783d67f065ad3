"""Checkpoints: whole or absent, the newest intact one, in safe formats, one process at a time."""

import logging
import stat
from pathlib import Path

import numpy as np
import pytest

from loomrl.errors import ArtifactError
from loomrl.training.checkpoints import Checkpoint, CheckpointStore


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"weights": np.arange(step, dtype=np.float32)}, {"env_steps": step, "note": "é"})


def filled(folder: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    store = CheckpointStore(folder, keep)
    with store:
        for step in steps:
            store.save(checkpoint(step))
    return store


def test_round_trip(tmp_path: Path) -> None:
    with filled(tmp_path / "a" / "b", 5, 700) as store:
        found = store.newest()
    assert found is not None
    assert (found.step, found.values) == (700, {"env_steps": 700, "note": "é"})
    assert found.arrays["weights"].tolist() == list(range(700))


def test_none_at_first(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, 1) as store:
        assert store.newest() is None


def test_keeps_the_newest(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3, 10, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000000003", "step-000000000010"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty", "manifest", "garbage"])
def test_a_corrupt_newest_is_reported_and_passed_over(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_EVENTS", str(tmp_path / "events"))
    store = filled(tmp_path / "store", 100, 200)
    file = tmp_path / "store" / "step-000000000200" / "arrays.safetensors"
    data = file.read_bytes()
    match damage:
        case "flip":
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "remove":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "manifest":
            (file.parent / "SHA256SUMS").unlink()
        case "garbage":
            (file.parent / "SHA256SUMS").write_bytes(b"\xff\xfe\x00")
    with store, caplog.at_level(logging.WARNING):
        found = store.newest()
    assert found is not None
    assert found.step == 100
    assert "step-000000000200 is corrupt" in caplog.text
    assert "step-000000000200 is corrupt" in (tmp_path / "events").read_text()
    with store:
        store.save(checkpoint(200))  # training reaches that step again and replaces it
        found = store.newest()
    assert found is not None
    assert found.step == 200


def test_corrupt_ones_above_do_not_count_as_newest(tmp_path: Path) -> None:
    store = filled(tmp_path, 10, 80, 100)
    for step in (80, 100):
        (tmp_path / f"step-{step:012d}" / "arrays.safetensors").write_bytes(b"damaged")
    store = CheckpointStore(tmp_path, keep=2)
    with store:
        store.save(checkpoint(20))
        found = store.newest()
    assert found is not None
    assert found.step == 20
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000000010", "step-000000000020"]


def test_what_a_killed_process_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    store = filled(tmp_path, 100)
    half = tmp_path / ".writing-abc"
    half.mkdir()
    (half / "arrays.safetensors").write_bytes(b"half")
    with store:
        found = store.newest()
    assert found is not None
    assert found.step == 100
    assert not half.exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, 1), pytest.raises(ArtifactError, match="another process is training"):
        CheckpointStore(tmp_path, 1).__enter__()
    with CheckpointStore(tmp_path, 1):
        pass  # free again


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"cannot write checkpoints to .*file/inner: .*set LOOMRL_HOME"):
        CheckpointStore(tmp_path / "file" / "inner", 1).__enter__()


def test_a_failed_save_keeps_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 100)
    with store:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        # Root may write anywhere, so the disk is full as well.
        monkeypatch.setattr("loomrl.training.checkpoints.tempfile.mkdtemp", full_disk)
        with pytest.raises(ArtifactError, match="cannot write checkpoints .*No space left"):
            store.save(checkpoint(200))
        tmp_path.chmod(stat.S_IRWXU)
        found = store.newest()
    assert found is not None
    assert found.step == 100


def full_disk(**_: object) -> str:
    raise OSError(28, "No space left on device")

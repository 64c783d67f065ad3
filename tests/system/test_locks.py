"""Locks between processes: who waits in vain is told for what."""

from pathlib import Path

import pytest
from filelock import FileLock

from loomrl.errors import ServiceError
from loomrl.storage.loomdb import migrate
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.locks import held, is_held, lock_file


def test_it_is_held_while_the_block_lasts_whatever_ends_it(loomrl_home: Path) -> None:
    path = lock_file("a")
    assert not is_held(path)
    with pytest.raises(ZeroDivisionError), held(path, 0):
        print(1 / (not is_held(path)))  # divides by zero: it is held
    assert not is_held(path)


def test_who_waits_in_vain_is_told_for_which_file(loomrl_home: Path) -> None:
    path = lock_file("a")
    told = f"another process holds {path} for more than 0.1 s"
    with FileLock(path), pytest.raises(ServiceError, match=told), held(path, 0.1):
        pytest.fail("it is held by another")


def test_a_database_that_another_process_migrates_for_too_long_is_no_traceback(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "held", lambda path, seconds: held(path, seconds / 1_000))
    with FileLock(loomrl_home / "loom.db.migrate.lock"), pytest.raises(ServiceError, match=r"loom\.db\.migrate\.lock"):
        LoomDB.open(f"sqlite:///{loomrl_home / 'loom.db'}")

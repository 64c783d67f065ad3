"""Locks between processes: who waits in vain is told for what."""

import re
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from loomrl.errors import ConfigError, ServiceError
from loomrl.storage.loomdb import migrate
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.locks import hold_lock, is_held, lock_file


def test_it_is_held_while_the_block_lasts_whatever_ends_it(loomrl_home: Path) -> None:
    path = lock_file("a")
    assert not is_held(path)
    with pytest.raises(KeyError), hold_lock(path, 0):
        _require_held(path)
    assert not is_held(path)


def _require_held(path: Path) -> None:
    assert is_held(path)
    raise KeyError


def test_what_fails_in_the_block_is_not_taken_for_a_lock_that_somebody_holds(loomrl_home: Path) -> None:
    with pytest.raises(Timeout), hold_lock(lock_file("a"), 0, lambda: ConfigError("refused")):
        raise Timeout("another")
    with FileLock(lock_file("a")), pytest.raises(ConfigError, match="refused"):
        hold_lock(lock_file("a"), 0, lambda: ConfigError("refused")).__enter__()


def test_who_waits_in_vain_is_told_for_which_file(loomrl_home: Path) -> None:
    path = lock_file("a")
    told = re.escape(f"another process, or thread, holds {path} for more than 0.1 s")
    with FileLock(path), pytest.raises(ServiceError, match=told), hold_lock(path, 0.1):
        pytest.fail("it is held by another")


def test_a_database_that_another_process_migrates_for_too_long_is_no_traceback(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "hold_lock", lambda path, seconds: hold_lock(path, seconds / 1_000))
    with FileLock(loomrl_home / "loom.db.migrate.lock"), pytest.raises(ServiceError, match=r"loom\.db\.migrate\.lock"):
        LoomDB.open(f"sqlite:///{loomrl_home / 'loom.db'}")

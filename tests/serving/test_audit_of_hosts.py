"""The logs of several hosts are read as one, and one that is missing is named."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.window import read_window
from loomrl.storage.audit.hosts import AUDIT_FOLDERS, chains_of_all_hosts, missing_chains
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.loomdb.records import AuditChain
from tests.support.live import decide, reward


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[AuditLog, AuditLog]:
    """The logs of two hosts; this one is the first."""
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "two"))
    second = AuditLog("cartpole", "two")
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "one"))
    monkeypatch.setenv(AUDIT_FOLDERS, str(tmp_path / "two" / "audit"))
    return AuditLog("cartpole", "one"), second


def test_an_episode_that_several_hosts_decided_is_one(hosts: tuple[AuditLog, AuditLog]) -> None:
    for number in range(2):
        for step in range(4):
            log = hosts[(step + number) % 2]
            decision = decide(log, "a", str(number), [0.0] * 4)
            reward(log, decision, "a", str(number), 1.0 + step, ended=step == 3)
    window = read_window("cartpole", {}, [])
    assert [episode.episode_return for episode in window.episodes] == [10.0, 10.0]
    assert set(window.until) == {"cartpole/one", "cartpole/two"}
    assert read_window("cartpole", window.until, window.open_episodes).episodes == []


def test_of_two_copies_the_longer_is_read(
    hosts: tuple[AuditLog, AuditLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = hosts
    decide(second, "a", "1", [0.0] * 4)
    fetched = tmp_path / "fetched"
    shutil.copytree(tmp_path / "two" / "audit", fetched)
    decide(second, "a", "2", [0.0] * 4)
    monkeypatch.setenv(AUDIT_FOLDERS, os.pathsep.join([str(fetched), str(tmp_path / "two" / "audit")]))
    assert chains_of_all_hosts("cartpole")["cartpole/two"] == second.folder
    assert len(read_window("cartpole", {}, []).episodes) == 2


def test_two_chains_of_one_name_are_refused(hosts: tuple[AuditLog, AuditLog], tmp_path: Path) -> None:
    first, _ = hosts
    shutil.copytree(first.folder, tmp_path / "two" / "audit" / "cartpole" / "copied")
    (tmp_path / "two" / "audit" / "cartpole" / "two").rename(tmp_path / "two" / "audit" / "cartpole" / "one")
    with pytest.raises(ConfigError, match="different chains of one name"):
        chains_of_all_hosts("cartpole")


def test_a_folder_that_is_not_there_is_named(
    hosts: tuple[AuditLog, AuditLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUDIT_FOLDERS, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"LOOMRL_AUDIT_FOLDERS names .*nowhere"):
        chains_of_all_hosts("cartpole")


def test_what_loomdb_knows_and_is_not_here_is_named_with_the_fix(hosts: tuple[AuditLog, AuditLog]) -> None:
    found, time = chains_of_all_hosts("cartpole"), datetime.now(UTC)

    def known(name: str, sequence: int, at: datetime = time) -> AuditChain:
        place = {"segment": "000001", "sequence": sequence, "digest": "0" * 64}
        return AuditChain(server=f"cartpole/{name}", host="robot-7", anchored=at, **place)

    everything = [known("one", 0), known("two", 7), known("three", 3), known("three-shadow", 3), known("four", -1)]
    behind, missing = missing_chains(found, everything)
    assert "ends at record 0, but robot-7 has written 7" in behind
    assert "the log cartpole/three of robot-7 is not here: share or fetch `LOOMRL_HOME/audit` of robot-7" in missing
    assert missing_chains(found, everything, since=time + timedelta(seconds=1)) == []

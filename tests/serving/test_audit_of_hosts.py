"""The logs of several hosts are read as one, and one that is missing is named."""

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion.comparison.window import read_window
from loomrl.storage.audit.chain import GENESIS, seal
from loomrl.storage.audit.full_verification import verify_all
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.hosts import AUDIT_FOLDERS, chains_of_all_hosts, missing_chains
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.segments import last_record
from loomrl.storage.loomdb.database import LoomDB
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

    assert missing_chains(found, [_head(found, "cartpole/one", time)]) == []
    (rewritten,) = missing_chains(found, [known("one", 0)])
    assert "is not the log cartpole/one of robot-7: record 0 is not the one that was anchored" in rewritten
    everything = [known("two", 7), known("three", 3), known("three-shadow", 3), known("four", -1)]
    behind, missing = missing_chains(found, everything)
    assert "ends at record 0, but robot-7 has written 7" in behind
    assert "the log cartpole/three of robot-7 is not here: share or fetch `LOOMRL_HOME/audit` of robot-7" in missing
    assert missing_chains(found, everything, since=time + timedelta(seconds=1)) == []


def _head(found: Mapping[str, Path], server: str, time: datetime) -> AuditChain:
    sequence, digest = last_record(found[server])
    return AuditChain(server=server, host="robot-7", anchored=time, segment="000001", sequence=sequence, digest=digest)


def _rewrite(copy: Path) -> None:
    """Another observation in every decision, sealed anew from the first record on, and one decision more."""
    previous, lines = GENESIS, []
    records = [orjson.loads(line) for line in copy.read_bytes().splitlines()]
    records.append(records[-1] | {"sequence": records[-1]["sequence"] + 1})
    for record in records:
        changed = {key: value for key, value in record.items() if key not in ("hash", "previous_hash")}
        if "observation" in changed:
            changed["observation"] = [99.0] * 4
        line, previous = seal(changed, previous)
        lines.append(line)
    copy.write_bytes(b"".join(lines))


def test_a_copy_that_was_rewritten_is_not_read_and_is_found(
    hosts: tuple[AuditLog, AuditLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone who may write where a log is shared changes what was observed, seals it all anew, and goes on."""
    first, _ = hosts
    for step in range(6):
        decide(first, "a", "1", [float(step)] * 4)
    shared = tmp_path / "shared"
    shutil.copytree(first.folder, shared / "cartpole" / first.folder.name)
    monkeypatch.setenv(AUDIT_FOLDERS, str(shared))
    with LoomDB.open() as db:
        assert anchor(db, first.head) is None
        assert len(read_window("cartpole", {}, []).episodes) == 1
        assert verify_all(db, everywhere=True).intact
        decide(first, "a", "1", [6.0] * 4)
        assert anchor(db, first.head) is None
        assert verify_all(db, everywhere=True).intact, "a copy may be behind"
        copy = shared / "cartpole" / first.folder.name / "000001.jsonl"
        kept = copy.read_bytes()
        _rewrite(copy)
        with pytest.raises(ConfigError, match="if one is a copy, it was changed"):
            read_window("cartpole", {}, [])
        (finding, *_) = verify_all(db, everywhere=True).all_findings()
        assert f"{first.folder.name} in {shared}" in finding
        shutil.rmtree(first.folder)  # nothing to compare it with but what is anchored
        assert any("not the one that was anchored" in one for one in verify_all(db, everywhere=True).all_findings())
        (missing,) = missing_chains(chains_of_all_hosts("cartpole"), db.audit_chains("cartpole"))
        assert "is not the log" in missing
        lines = kept.splitlines(keepends=True)
        changed = lines[2].replace(b"[1.0,1.0,1.0,1.0]", b"[7.0,7.0,7.0,7.0]")
        assert changed != lines[2]
        record = {key: value for key, value in orjson.loads(changed).items() if key not in ("hash", "previous_hash")}
        sealed, _ = seal(record, orjson.loads(lines[1])["hash"])
        copy.write_bytes(b"".join([*lines[:2], sealed, *lines[3:]]))  # one record alone: the next does not follow it
        with pytest.raises(ArtifactError, match="does not follow record"):
            read_window("cartpole", {}, [])

"""Heads as LoomDB keeps them: signed, and found out where they are not this installation's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.errors import ConfigError, GateRefused, ServiceError
from loomrl.storage.audit.chain import GENESIS, seal, unseal
from loomrl.storage.audit.heads import anchor, anchors
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.segments import lines, segments
from loomrl.storage.audit.verification import verify_chain, without_digest
from loomrl.storage.loomdb.database import LoomDB
from tests.support.live import decide


@pytest.fixture
def log(loomrl_home: Path) -> Iterator[AuditLog]:
    log = AuditLog("cartpole")
    for number in range(5):
        decide(log, "a", "e", [float(number)] * 4)
    yield log
    log.close()


def anchored(log: AuditLog) -> AuditKeeper:
    keeper = AuditKeeper(log)
    with LoomDB.open() as db:
        keeper.anchor(lambda: db)
    return keeper


def verified(log: AuditLog, demand_signed: bool = False) -> list[str]:
    with LoomDB.open() as db:
        return verify_chain(log.folder, anchors(db, log.server), demand_signed).findings


def test_a_server_signs_what_it_anchors(log: AuditLog) -> None:
    keeper = anchored(log)
    assert (keeper.unsigned, keeper.anchored) == (None, {log.server: log.head})
    assert verified(log, demand_signed=True) == []
    result = CliRunner().invoke(audit_app, ["verify", "--signed"], catch_exceptions=False)
    assert "1 anchored heads, 1 of them signed" in result.stdout


def forge(log: AuditLog) -> None:
    """Write another story, its hashes right."""
    digest, forged = GENESIS, []
    for line in lines(segments(log.folder)[0]):
        entry = {name: value for name, value in unseal(line).items() if name not in ("previous_hash", "hash")}
        changed, digest = seal(entry | {"agent_id": "somebody else"}, digest)
        forged.append(changed)
    segments(log.folder)[0].write_bytes(b"".join(forged))
    log._head = (*log._head[:2], digest)


def test_a_rewritten_log_is_found_though_its_heads_were_rewritten_too(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forge(log)
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "of the forger"))
    (tmp_path / "of the forger").mkdir()
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as db:
        anchor(db, log.head)  # signed with a key of their own
        monkeypatch.undo()
        (finding,) = verify_chain(log.folder, anchors(db, log.server)).findings
    assert "cannot be relied on" in finding
    assert "not among the" in finding


def test_a_log_that_was_rewritten_or_cut_is_not_anchored(log: AuditLog) -> None:
    anchored(log)
    forge(log)
    with LoomDB.open() as db, pytest.raises(ServiceError, match=r"'cartpole/server-0'.*record 5 of segment 000001"):
        AuditKeeper(log).anchor(lambda: db)


def test_without_a_key_heads_are_anchored_unsigned_and_it_is_said(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_SIGNING_KEY", "/nowhere/key.pem")
    keeper = anchored(log)
    assert "/nowhere/key.pem" in str(keeper.unsigned)
    assert keeper.anchored == {log.server: log.head}
    monkeypatch.delenv("LOOMRL_SIGNING_KEY")
    assert verified(log) == []
    assert [*map(without_digest, verified(log, demand_signed=True))] == [
        "the anchored beginning, record 0, is not signed", f"the anchored head {log.head.sequence} is not signed"
    ]  # fmt: skip
    result = CliRunner().invoke(audit_app, ["verify", "--signed", "--json"])
    assert isinstance(result.exception, GateRefused)
    assert json.loads(result.stdout)["chains"][0]["num_signed"] == 0


def test_a_policy_that_nobody_knows_is_not_verified(loomrl_home: Path) -> None:
    """A misspelt name is no whole log."""
    result = CliRunner().invoke(audit_app, ["verify", "--signed", "--policy", "cartpoel"])
    assert isinstance(result.exception, ConfigError)
    assert "neither this home nor LoomDB knows an audit log of it" in str(result.exception)
    assert CliRunner().invoke(audit_app, ["verify"]).exit_code == 0

"""What LoomDB's anchors show of chains, segments and heads that are gone, and of LoomDB itself."""

import shutil
from pathlib import Path

import pytest
from live import decide
from typer.testing import CliRunner

from loomrl.errors import GateRefused
from loomrl.loomdb.database import LoomDB
from loomrl.serving.audit import AuditLog
from loomrl.serving.audit_commands import audit_app
from loomrl.serving.keeper import AuditKeeper
from loomrl.serving.segments import segments

pytestmark = pytest.mark.usefixtures("loomrl_home")


def serve(name: str, num_starts: int = 3) -> Path:
    """A chain as a server leaves it: a segment for each start, its head anchored again and again."""
    for _ in range(num_starts):
        log = AuditLog("cartpole", name)
        keeper = AuditKeeper(log)
        with LoomDB.open() as db:
            for number in range(3):
                decide(log, "a", "e", [float(number)] * 4)
                keeper.anchor(lambda db=db: db)
        log.close()
    return log.folder


def verify(*options: str) -> tuple[bool, list[str]]:
    """Whether `loomrl audit verify` finds everything whole, and what it prints."""
    done = CliRunner().invoke(audit_app, ["verify", *options])
    assert done.exception is None or isinstance(done.exception, GateRefused), done.exception
    return done.exception is None, done.stdout.splitlines()


def test_a_missing_oldest_segment_is_found() -> None:
    chain = serve("server-0")
    segments(chain)[0].unlink()
    whole, lines = verify("--signed")
    assert not whole
    assert any("000001" in line and "records 0 to 4" in line for line in lines), lines


def test_a_missing_chain_is_found() -> None:
    serve("server-0")
    shutil.rmtree(serve("server-1"))
    whole, lines = verify("--signed")
    assert not whole
    assert any("cartpole/server-1" in line and "BROKEN" in line for line in lines), lines

"""What LoomDB's anchors show of chains, segments and heads that are gone, and of LoomDB itself."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.errors import ConfigError, GateRefused, ServiceError
from loomrl.storage.audit import anchors, full_verification
from loomrl.storage.audit.chain import GENESIS, seal
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.legacy_heads import HEAD_TYPE, REMOVED
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.segments import segments
from loomrl.storage.audit.verification import ChainReport, verify_chain, without_digest
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.files import canonical_json
from loomrl.system.security.signing import sign_envelope
from tests.support.live import decide

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


def test_what_a_server_states_while_its_chain_is_read_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("server-0", 1)
    before, began = full_verification.verify_chain, list[Path]()

    def verify_later(folder: Path, *options: Any) -> ChainReport:
        if not began:
            began.append(folder)
            serve("server-0", 2)
        return before(folder, *options)

    monkeypatch.setattr(full_verification, "verify_chain", verify_later)
    whole, lines = verify("--signed")
    assert whole, lines
    assert began


def copy_of_all(home: Path, to: Path) -> None:
    """Chains and LoomDB as they are now."""
    shutil.copytree(home / "audit", to / "audit", dirs_exist_ok=True)
    shutil.copytree(home / "keys", to / "keys", dirs_exist_ok=True)
    with closing(sqlite3.connect(home / "loom.db")) as source, closing(sqlite3.connect(to / "loom.db")) as target:
        source.backup(target)


def test_everything_rolled_back_together_shows_against_an_exported_anchor(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("server-0", 1)
    old = tmp_path / "old"
    old.mkdir()
    copy_of_all(loomrl_home, old)
    serve("server-0", 1)
    exported = str(tmp_path / "elsewhere.json")
    assert CliRunner().invoke(audit_app, ["anchor", exported]).exit_code == 0
    assert verify("--signed", "--anchor", exported)[0]
    monkeypatch.setenv("LOOMRL_HOME", str(old))
    assert verify("--signed")[0], "nothing here shows it"
    whole, lines = verify("--anchor", exported)
    assert not whole
    assert any("LoomDB was rolled back" in line for line in lines)
    assert any("segment 000002" in line and "are missing" in line for line in lines)


def test_what_a_person_accepted_is_a_note_ever_after() -> None:
    chain = serve("server-0")
    segments(chain)[0].unlink()
    arguments = ["accept", "--by", "Ada", "--reason", "the disk was lost"]
    assert CliRunner().invoke(audit_app, arguments).exit_code == 0
    whole, lines = verify("--signed")
    assert whole
    assert any("records 0 to 4" in line and "accepted by Ada" in line and "the disk was lost" in line for line in lines)
    segments(chain)[0].unlink()
    assert not verify()[0], "what goes missing after that is found"


def test_who_accepts_damage_does_not_accept_what_may_stand_there_later() -> None:
    """Once it is accepted, a damaged line is no place in which anything may be written."""
    chain = serve("server-0")
    path = segments(chain)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if b"[0.0,0.0,0.0,0.0]" in line)

    def write(observation: bytes) -> None:
        changed = lines[place].replace(b"[0.0,0.0,0.0,0.0]", observation)
        path.write_bytes(b"".join([*lines[:place], changed, *lines[place + 1 :]]))

    write(b"[0.5,0.0,0.0,0.0]")
    assert CliRunner().invoke(audit_app, ["accept", "--by", "Ada", "--reason", "bit rot"]).exit_code == 0
    assert verify("--signed")[0]
    write(b"[7.0,7.0,7.0,7.0]")
    whole, found = verify("--signed")
    assert not whole
    assert any(f"{path.name}:{place + 1}: the hash is not that of the content" in line for line in found), found


FORGED = '{"number":3,"previous":"x","kind":"head","server":"cartpole/server-0","host":"evil","time":"x"}'


@pytest.mark.parametrize(
    ("changes", "later"),
    [
        ("payload = replace(payload, '000001', '000002')", f"payload = '{FORGED}', signature = NULL"),
        ("payload = '{'", "payload = '['"),
        ("payload = x'ff'", "payload = x'fe'"),
        ("kind = 'removal'", "kind = 'removal', keyid = 'x'"),
    ],
    ids=["changed", "no statement", "no text", "renamed"],
)
def test_who_accepts_a_changed_statement_does_not_accept_what_may_stand_there_later(
    loomrl_home: Path, changes: str, later: str
) -> None:
    serve("server-0", 1)
    change(loomrl_home, f"UPDATE audit_anchors SET {changes} WHERE number = 3")
    assert not verify()[0]
    assert CliRunner().invoke(audit_app, ["accept", "--by", "Ada", "--reason", "bit rot"]).exit_code == 0
    assert verify("--signed")[0]
    change(loomrl_home, f"UPDATE audit_anchors SET {later} WHERE number = 3")
    assert not verify("--signed")[0]


def test_who_accepts_that_a_named_statement_is_missing_does_not_accept_another_in_its_place(loomrl_home: Path) -> None:
    number = max(verify_chain(serve("server-0")).statements)
    kept = "CREATE TABLE kept AS SELECT * FROM audit_anchors"
    change(loomrl_home, kept, f"DELETE FROM audit_anchors WHERE number = {number}")
    assert CliRunner().invoke(audit_app, ["accept", "--by", "Ada", "--reason", "lost"]).exit_code == 0
    assert verify("--signed")[0]
    change(
        loomrl_home,
        "INSERT INTO audit_anchors SELECT * FROM kept WHERE number NOT IN (SELECT number FROM audit_anchors)",
    )
    assert verify("--signed")[0]
    change(loomrl_home, f"UPDATE audit_anchors SET digest = 'x' WHERE number = {number}")
    (named,) = (line for line in verify("--signed")[1] if f"its records name statement {number} of LoomDB" in line)
    assert "accepted" not in named


def test_what_an_earlier_version_accepted_of_loomdb_is_still_a_note(loomrl_home: Path) -> None:
    serve("server-0", 1)
    change(loomrl_home, "UPDATE audit_anchors SET payload = '{' WHERE number = 3")
    with LoomDB.open() as db:
        found = full_verification.verify_all(db).all_findings()
        anchors.state(db, "accepted", "", findings=[*map(without_digest, found)], by="Ada", reason="bit rot")
    whole, lines = verify("--signed")
    assert whole, lines
    assert any("cannot be read: it was changed" in line and "accept it again" in line for line in lines)


def test_what_an_earlier_version_accepted_is_still_a_note_and_asks_for_a_look() -> None:
    chain = serve("server-0")
    path = segments(chain)[0]
    path.write_bytes(path.read_bytes().replace(b"[0.0,0.0,0.0,0.0]", b"[0.5,0.0,0.0,0.0]"))
    with LoomDB.open() as db:
        found = full_verification.verify_all(db).all_findings()
        former = [without_digest(finding) for finding in found]
        assert former != found
        anchors.state(db, "accepted", "", findings=former, by="Ada", reason="bit rot")
    whole, lines = verify("--signed")
    assert whole
    assert any("did not keep what was found there: look at it, and accept it again" in line for line in lines), lines


def change(home: Path, *statements: str) -> None:
    """Change LoomDB by hand."""
    with closing(sqlite3.connect(home / "loom.db")) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.mark.parametrize("held", ["x'ff00'", "CAST(x'ff41' AS TEXT)"], ids=["blob", "text"])
@pytest.mark.parametrize("column", ["payload", "signature", "digest", "server"])
def test_damaged_rows_are_named_and_hide_nothing_else(loomrl_home: Path, column: str, held: str) -> None:
    serve("server-0", 1)
    shutil.rmtree(serve("server-1", 1))
    change(loomrl_home, f"UPDATE audit_anchors SET {column} = {held} WHERE number IN (2, 3)")
    whole, lines = verify("--signed")
    assert not whole
    for number in (2, 3):
        (line,) = (
            line for line in lines if f"row {number} of the table audit_anchors in LoomDB cannot be read" in line
        )
        assert without_digest(line) != line
    assert any(line.startswith("cartpole/server-0: ") for line in lines)
    assert any("the whole chain is missing" in line for line in lines), lines
    assert not any("are missing, before statement" in line for line in lines)


def test_damaged_rows_of_an_earlier_version_are_named(loomrl_home: Path) -> None:
    serve("server-0", 1)
    with LoomDB.open() as db:
        db.record_event(REMOVED, {})
    names, values = "server, segment, sequence, digest, created", "'cartpole/server-0', '000001', 0"
    change(
        loomrl_home,
        f"INSERT INTO audit_heads ({names}) VALUES ({values}, x'ff', '2026-01-01 00:00:00')",
        "UPDATE events SET data = x'ff'",
    )
    lines = verify()[1]
    for table in ("audit_heads", "events"):
        assert any(f"row 1 of the table {table} in LoomDB cannot be read" in line for line in lines), lines


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE audit_anchors"],
        ["DELETE FROM alembic_version"],
        ["UPDATE alembic_version SET version_num = '0001'"],
        ["UPDATE alembic_version SET version_num = x'ff00'"],
        ["UPDATE alembic_version SET version_num = '0003'", "INSERT INTO alembic_version VALUES ('0005')"],
        [],
    ],
)
def test_a_damaged_loomdb_is_a_finding_and_the_chains_are_verified_without_it(
    loomrl_home: Path, statements: list[str]
) -> None:
    serve("server-0", 1)
    segments(serve("server-1"))[1].unlink()
    change(loomrl_home, *statements)
    if not statements:
        (loomrl_home / "loom.db").write_bytes(b"garbage" * 1_000)
    whole, lines = verify("--signed")
    assert not whole
    assert any("restore it from a backup. The chains were verified without it" in line for line in lines), lines
    assert any(line.startswith("cartpole/server-0: whole") for line in lines)
    assert any("segment 000002 missing" in line for line in lines)
    accepted = CliRunner().invoke(audit_app, ["accept", "--by", "Ada", "--reason", "no LoomDB"])
    assert isinstance(accepted.exception, ServiceError), "what LoomDB would have explained is not accepted without it"


def test_a_file_that_holds_no_trusted_key_is_a_finding_and_the_chains_are_verified(loomrl_home: Path) -> None:
    segments(serve("server-0"))[1].unlink()
    (loomrl_home / "keys" / "theirs.pub.pem").write_text("x")
    whole, lines = verify("--signed")
    assert not whole
    assert any("theirs.pub.pem holds no public key" in line and "restore it" in line for line in lines), lines
    assert any("segment 000002 missing" in line for line in lines)
    assert not any("cannot be relied on" in line for line in lines), "the other keys count as before"


@pytest.mark.parametrize("kind", ["head", "removal"])
def test_a_statement_of_a_segment_that_none_can_be_is_a_finding(kind: Literal["head", "removal"]) -> None:
    serve("server-0", 1)
    with LoomDB.open() as db:
        place = {"segment": "9" * 5_000, "sequence": 2, "first_segment": "000001", "first_sequence": 0}
        anchors.state(db, kind, "cartpole/server-0", digest="x", **place)
    whole, lines = verify("--signed")
    assert not whole
    assert any("rewritten" in line or "names no segments" in line for line in lines), lines


def test_a_copy_with_a_line_that_no_server_wrote_is_a_finding(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = serve("server-0", 1)
    shutil.copytree(loomrl_home / "audit", tmp_path / "copies")
    monkeypatch.setenv("LOOMRL_AUDIT_FOLDERS", str(tmp_path / "copies"))
    assert verify("--everywhere")[0]
    with segments(chain)[-1].open("ab") as file:
        file.write(seal({}, GENESIS)[0])
    whole, lines = verify("--everywhere")
    assert not whole
    assert any("000001.jsonl:6: not a record of a server" in line for line in lines), lines


def test_a_folder_above_chains_that_cannot_be_read_is_a_finding(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("server-0", 1)
    locked = loomrl_home / "audit" / "cartpole"
    monkeypatch.setattr("os.access", lambda path, _: path != locked)
    assert any(f"{locked} cannot be read" in line for line in verify()[1])


def test_chains_of_other_hosts_are_listed_and_demanded_where_all_must_be_here(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{tmp_path / 'shared.db'}")
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    chain = serve("on-other", 1)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    serve("on-here", 1)
    fetched = tmp_path / "fetched"
    (fetched / "cartpole").mkdir(parents=True)
    chain.rename(fetched / "cartpole" / "on-other")
    whole, lines = verify("--signed")
    assert whole
    assert any(line.startswith("cartpole/on-other: not looked at: it lies on other") for line in lines)
    whole, lines = verify("--everywhere")
    assert not whole
    assert any("the whole chain is missing" in line for line in lines)
    monkeypatch.setenv("LOOMRL_AUDIT_FOLDERS", str(fetched))
    assert verify("--everywhere", "--signed")[0]


def test_heads_and_removals_of_an_earlier_version_are_adopted(loomrl_home: Path) -> None:
    """As LoomDB held them: a signed head for each segment, an event for the one that `gc` removed."""
    for _ in range(3):
        log = AuditLog("cartpole", "server-0")
        decide(log, "a", "e", [0.0] * 4)
        log.close()
        head = vars(log.head)
        signed = sign_envelope(canonical_json(head), HEAD_TYPE).signatures[0]
        LoomDB.open().close()
        with closing(sqlite3.connect(loomrl_home / "loom.db")) as db:
            values = (*head.values(), signed.sig, signed.keyid)
            names = "server, segment, sequence, digest, signature, keyid, created"
            db.execute(f"INSERT INTO audit_heads ({names}) VALUES (?, ?, ?, ?, ?, ?, '2026-01-01 00:00:00')", values)
            db.commit()
    first = segments(log.folder)[0]
    with LoomDB.open() as database:
        database.record_event(REMOVED, {"server": "cartpole/server-0", "segment": first.stem, "sequence": 1})
    first.unlink()
    assert verify()[0], "before any server of this version was there"
    serve("server-0", 1)
    whole, lines = verify("--signed")
    assert whole, lines
    assert any("records 0 to 1 are no longer kept" in line for line in lines)
    with LoomDB.open() as database:
        database.record_event(REMOVED, {"server": "cartpole/server-0", "segment": "000002", "sequence": 3})
    segments(log.folder)[0].unlink()
    assert not verify("--signed")[0], "an event that nobody adopted"
    with closing(sqlite3.connect(loomrl_home / "loom.db")) as db:
        db.execute("DELETE FROM audit_heads WHERE id = 1")
        db.commit()
    assert any("adopted from an earlier version cannot be relied on" in line for line in verify()[1])


def test_a_chain_that_is_gone_does_not_lie_elsewhere_because_an_unsigned_statement_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{tmp_path / 'shared.db'}")
    shutil.rmtree(serve("server-0", 1))

    def without_key(*_: object) -> None:
        raise ConfigError("no key")

    with monkeypatch.context() as forging, LoomDB.open() as db:
        forging.setattr("socket.gethostname", lambda: "other")
        forging.setattr(anchors, "sign_envelope", without_key)
        anchors.state(db, "head", "cartpole/server-0", segment="000001", sequence=0, digest="0" * 64)
    whole, lines = verify("--signed")
    assert not whole
    assert any("the whole chain is missing" in line for line in lines), lines

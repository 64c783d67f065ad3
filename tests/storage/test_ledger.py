"""What LoomDB holds about moves of the champion alias, and rows that somebody changed."""

from pathlib import Path
from typing import Any

import pytest

from loomrl.storage import ledger
from loomrl.storage.loomdb.database import DamagedRow, LoomDB

MOVE = {
    "kind": "promotion",
    "policy": "cartpole",
    "version": "1",
    "before": None,
    "run_id": "r",
    "reason": "",
    "time": "",
}
REVOCATION = {"policy": "cartpole", "version": "1", "time": "", "number": 3}


@pytest.mark.parametrize("number", ["abc", None, -1, 1.5, 2**53, int("9" * 4300)])
@pytest.mark.parametrize(("kind", "row"), [("promotion", MOVE), ("revocation", REVOCATION)])
def test_what_has_no_number_is_named(ready_home: Path, kind: str, row: dict[str, Any], number: Any) -> None:
    with LoomDB.open() as db:
        db.record_event(kind, {**row, "number": 2})
        assert ledger.newest_number(db, "cartpole") == 2
        db.record_event(kind, {**row, "number": str(number) if isinstance(number, int) and number > 2**53 else number})
        with pytest.raises(DamagedRow, match=f"a row of LoomDB is no {kind}, it was changed"):
            ledger.newest_number(db, "cartpole")


@pytest.mark.parametrize("lacking", ["time", "reason", "version"])
def test_a_move_that_says_too_little_is_named_and_hinders_no_other_policy(ready_home: Path, lacking: str) -> None:
    with LoomDB.open() as db:
        db.record_event("promotion", {name: value for name, value in MOVE.items() if name != lacking})
        db.record_event("rollback", {})
        assert ledger.moves(db, "hopper") == []
        with pytest.raises(DamagedRow, match="a row of LoomDB is no promotion, it was changed"):
            ledger.moves(db, "cartpole")

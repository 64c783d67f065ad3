"""What servers share of their monitors' evidence: replaced as a whole, in one order, forgotten together."""

from collections.abc import Iterator

import pytest

from loomrl.storage.loomdb.database import LoomDB


@pytest.fixture
def db(database_url: str) -> Iterator[LoomDB]:
    with LoomDB.open(database_url) as opened:
        yield opened


def test_each_server_has_one_row_and_each_change_the_next_revision(db: LoomDB) -> None:
    def share(server: str, version: str = "1", **document: int) -> tuple[int, int]:
        kept = db.share_evidence(
            "cartpole",
            version,
            server,
            lambda revision, former: document | {"revision": revision, "former": former.get("revision")},
        )
        assert kept.document["revision"] == kept.revision
        return kept.number, kept.revision

    assert db.evidence_revision("cartpole") == (0, 0)
    assert [share("one"), share("two"), share("one", count=5), share("two", "2")] == [(1, 1), (2, 2), (1, 3), (2, 4)]
    found = [
        (row.server, row.version, row.document.get("count"), row.document["former"])
        for row in db.shared_evidence("cartpole")
    ]
    assert found == [("one", "1", 5, 1), ("two", "1", None, None), ("two", "2", None, None)]
    assert db.evidence_revision("cartpole") == (4, 3)
    assert db.shared_evidence("other") == []
    db.forget_evidence("cartpole", "1")
    assert [row.version for row in db.shared_evidence("cartpole")] == ["2"]
    assert share("three") == (3, 5)

"""What a server gathered last reaches the other servers before its exchange ends."""

import threading
from pathlib import Path

import pytest

from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.exchange import EvidenceExchange
from loomrl.storage.loomdb.database import LoomDB
from tests.support.projects import until


def test_a_row_that_none_can_read_ends_no_exchange(loomrl_home: Path) -> None:
    exchange = EvidenceExchange("cartpole", "server-0")
    with LoomDB.open() as database:
        database.share_evidence("cartpole", "1", exchange._server, lambda _revision, _former: {"window": ""})
        exchange.start()
        exchange.offer([VersionEvidence("1")])
        until(lambda: exchange.error is not None, "the row to be met")
        database.forget_evidence("cartpole", "1")
        exchange.offer([VersionEvidence("1")])
        until(lambda: exchange.error is None and bool(database.shared_evidence("cartpole")), "the next exchange")
    exchange.stop(600.0)


def test_what_is_offered_while_it_writes_is_written_before_it_ends(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = EvidenceExchange("cartpole", "server-0")
    write, is_writing, may_go_on = exchange._exchange, threading.Event(), threading.Event()

    def slowly() -> None:
        write()
        is_writing.set()
        assert may_go_on.wait(600)

    monkeypatch.setattr(exchange, "_exchange", slowly)
    exchange.start()
    exchange.offer([VersionEvidence("1")])
    assert is_writing.wait(600)
    exchange.offer([VersionEvidence("2")])
    exchange.stop(0.0)
    may_go_on.set()
    exchange.stop(600.0)
    with LoomDB.open() as database:
        assert {one.version for one in database.shared_evidence("cartpole")} == {"1", "2"}

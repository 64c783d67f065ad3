"""What the ledger knows after a restart."""

import pytest

from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.decisions.requests import Feedback
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import decisions, record
from loomrl.storage.audit.segments import newest_records
from loomrl.system.http.problems import Problem

pytestmark = pytest.mark.usefixtures("loomrl_home")


def decide(log: AuditLog) -> str:
    entry = record("decision", decision_id=None, episode_id=None, version="1") | {"agent_id": "a"}
    log.append([entry])
    return str(entry["decision_id"])


def decide_two(log: AuditLog) -> list[str]:
    shared = {"count": 2, "version": "1", "dtypes": {"observation": "float32", "action": "int64"}}
    columns = {"observation": [[0.5], [1.5]], "action": [0, 1], "value": [1.0, 2.0], "exploration_flag": [False, False]}
    entry = decisions(shared, {"agent_id": ["a", "b"], "episode_id": [None, None], **columns})
    log.append([entry])
    return [f"{entry['decision_id']}.{row}" for row in range(2)]


def ledger_of(log: AuditLog, num_bytes: int = 2**20, **options: int) -> FeedbackLedger:
    """A ledger as a new process has it."""
    ledger = FeedbackLedger("cartpole", log, **options)
    for entry in newest_records(log.folder, num_bytes):
        ledger.recall(entry)
    return ledger


def feedback(decision_id: str) -> list[Feedback]:
    return [Feedback(decision_id, 1.0, terminated=False, truncated=False)]


def test_the_newest_decisions_are_read_back_from_as_many_segments_as_it_takes() -> None:
    log = AuditLog("cartpole", segment_bytes=2_000)
    written = [decide(log) for _ in range(20)]
    log.append([record("feedback", decision_id=written[-1])])
    assert int(log.head.segment) > 4
    log.close()
    again = AuditLog("cartpole")
    ledger = ledger_of(again, capacity=5)
    with pytest.raises(Problem, match="has its feedback already"):
        ledger.accept(feedback(written[-1]))
    for decision_id in written[-5:-1]:
        ledger.accept(feedback(decision_id))
    with pytest.raises(Problem, match="too old for feedback"):
        ledger.accept(feedback(written[-6]))


def test_no_more_of_the_log_is_read_back_than_was_said() -> None:
    log = AuditLog("cartpole")
    written = [decide(log) for _ in range(20)]
    size = len((log.folder / "000001.jsonl").read_bytes().splitlines(keepends=True)[-1])
    ledger = ledger_of(log, num_bytes=3 * size)
    for decision_id in written[-3:]:
        ledger.accept(feedback(decision_id))
    with pytest.raises(Problem, match="too old for feedback"):
        ledger.accept(feedback(written[-4]))


def test_decisions_of_one_record_wait_each_for_their_own_feedback() -> None:
    log = AuditLog("cartpole")
    first, second = decide_two(log)
    ledger_of(log).accept(feedback(second))
    ledger = ledger_of(log)
    with pytest.raises(Problem, match="has its feedback already"):
        ledger.accept(feedback(second))
    whole = first.partition(".")[0]
    for unknown in (whole, f"{whole}.2", f"{whole}.00", f"{whole}.-1", f"{whole}.", f"{whole}.x", f"{first}.0"):
        with pytest.raises(Problem, match="unknown here"):
            ledger.accept(feedback(unknown))
    ledger.accept(feedback(first))
    (last,) = [entry for entry in records("cartpole") if entry["kind"] == "feedback"][1:]
    assert (last["decision_id"], last["agent_id"]) == (first, "a")


def test_a_cost_is_on_record_where_one_is_told() -> None:
    log = AuditLog("cartpole")
    told, untold = decide(log), decide(log)
    ledger = ledger_of(log)
    ledger.accept([Feedback(told, 1.0, terminated=False, truncated=False, cost=0.25), *feedback(untold)])
    assert [entry.get("cost") for entry in records("cartpole") if entry["kind"] == "feedback"] == [0.25, None]

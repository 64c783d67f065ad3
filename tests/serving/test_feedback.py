"""What the ledger knows after a restart."""

import pytest

from loomrl.serving.audit import AuditLog, record
from loomrl.serving.feedback import FeedbackLedger
from loomrl.serving.problems import Problem
from loomrl.serving.requests import Feedback

pytestmark = pytest.mark.usefixtures("loomrl_home")


def decide(log: AuditLog, ledger: FeedbackLedger) -> str:
    entry = record("decision", decision_id=None, episode_id=None, version="1") | {"agent_id": "a"}
    log.append([entry])
    ledger.remember([entry])
    return str(entry["decision_id"])


def feedback(decision_id: str) -> list[Feedback]:
    return [Feedback(decision_id, 1.0, terminated=False, truncated=False)]


def test_the_newest_decisions_are_read_back_from_as_many_segments_as_it_takes() -> None:
    log = AuditLog("cartpole", segment_bytes=2_000)
    ledger = FeedbackLedger("cartpole", log)
    decisions = [decide(log, ledger) for _ in range(20)]
    ledger.accept(feedback(decisions[-1]))
    assert int(log.head.segment) > 4
    log.close()
    again = AuditLog("cartpole")
    ledger = FeedbackLedger("cartpole", again, capacity=5)
    with pytest.raises(Problem, match="has its feedback already"):
        ledger.accept(feedback(decisions[-1]))
    for decision_id in decisions[-5:-1]:
        ledger.accept(feedback(decision_id))
    with pytest.raises(Problem, match="too old for feedback"):
        ledger.accept(feedback(decisions[-6]))
    again.close()

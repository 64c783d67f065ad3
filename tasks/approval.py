"""A person's approval: the run pauses in the Prefect UI; without a server it ends in the state `waiting`."""

from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.settings import PREFECT_API_URL
from pydantic import Field

from loomrl.promotion.rules import WAITING
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.run_record import read_run
from tasks.record import run_config, update

POLL_SECONDS = 2


class Approval(RunInput):
    """The form a person fills in."""

    approved: bool = Field(description="Whether this version may become champion")
    person: str = Field(min_length=1, description="Who decides")
    reason: str = Field(min_length=1, description="Why")


def wait_for_approval(run_id: str) -> bool:
    """Pause until a person decides; True when the decision is to be taken again with their answer.

    False where nothing waits, and where no server could show the question: `loomrl policy approve|reject RUN` then
    finishes the run.
    """
    decision = read_run(run_id).decision
    if decision is None or decision.decision != WAITING or not PREFECT_API_URL.value():
        return False
    update(run_id, state="waiting", message="; ".join(decision.reasons))
    timeout = int(run_config(run_id).promotion.approval_timeout_seconds)
    try:
        answer = pause_flow_run(wait_for_input=Approval, timeout=timeout, poll_interval=POLL_SECONDS)
    except FlowPauseTimeout:
        answer = Approval(approved=False, person="nobody", reason=f"no answer within {timeout} s")
    update(run_id, state="running", message="")
    with LoomDB.open() as db:
        db.decide_approval(run_id, answer.approved, answer.person, answer.reason)
    return True

"""The record of one life-cycle run: what ran, on what, and what came of it.

Lives in `LOOMRL_HOME/runs/RUN_ID/record.json`, beside the run's effective config, `dvc.lock`, uncommitted diff,
shadow report, signed envelope and evidence report.
"""

import secrets
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.system.home import home, inside
from loomrl.system.locks import is_held
from loomrl.system.schema import Document
from loomrl.types import Json, PromotionDecision, ShadowReport

RECORD = "record.json"


class StageRecord(Document):
    """One of the seven stages in one run."""

    name: str
    status: str  # "ran", "unchanged", "restored", "repeated", "refused", "failed"
    seconds: float
    verdict: str  # one sentence for the table
    digest: str | None = None  # of the stage's output folder
    lock: Json | None = None  # the stage's entry in dvc.lock
    plugins: list[str] = Field(default_factory=list)  # packages of others that it ran, as plugin:NAME@SHA256


class RunRecord(Document):
    """What `record.json` keeps of one run of the life cycle: its config, code, stages, times and final state."""

    run_id: str
    policy: str
    state: str  # "running", "waiting", "promoted", "unchanged", "refused", "failed", "crashed"
    started: str  # ISO 8601, UTC
    finished: str | None = None
    config: Json  # in full, as it took effect
    overrides: Json = Field(default_factory=dict)  # key, with dots between its parts -> value
    git_commit: str | None = None  # None outside git
    git_dirty: bool = False  # whether something differed from the commit
    left_out: dict[str, str] = Field(default_factory=dict)  # of diff.patch: file that may hold a secret -> why
    stages: list[StageRecord] = Field(default_factory=list)
    prefect_flow_run_id: str | None = None
    prefect_api_url: str | None = None  # the server it was started on; None: a temporary one
    mlflow_run_id: str | None = None
    version: str | None = None  # that it registered, or found registered; None where it came to none
    champion_before: str | None = None  # None where there was none
    shadow: ShadowReport | None = None
    decision: PromotionDecision | None = None
    message: str = ""
    closed: bool = False  # report, MLflow and Prefect know the outcome


def now() -> str:
    """The current time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_run_id() -> str:
    """A sortable, unique id such as `20261120-093015-3f9a1c`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def run_folder(run_id: str) -> Path:
    """`LOOMRL_HOME/runs/RUN_ID`, where a run keeps its record and report; it need not be there.

    Raises:
        ConfigError: for what is no name, such as `../x`.
        ArtifactError: when LOOMRL_HOME cannot be made or written.
    """
    return inside("runs", run_id)


def read_run(run_id: str) -> RunRecord:
    """Read one run's record.

    Raises:
        ConfigError: when there is no such run; names the latest ones.
        ArtifactError: when the record cannot be read, or is not valid.
    """
    path = run_folder(run_id) / RECORD
    if not path.is_file():
        latest = ", ".join(record.run_id for record in list_runs()[:3]) or "none yet"
        raise ConfigError(f"no run {run_id!r} under {home() / 'runs'}; latest runs: {latest}")
    return RunRecord.read(path)


def write_run(record: RunRecord) -> None:
    """Write a run's record in place of the former one; its folder is made.

    Raises:
        ArtifactError: when it cannot be written; the former one stays.
    """
    record.write(run_folder(record.run_id) / RECORD)


def list_runs(policy: str | None = None) -> list[RunRecord]:
    """The records of all runs, newest first, of one policy if given; empty where there are none.

    Raises:
        ArtifactError: when one of them, of whichever policy, cannot be read or is not valid.
    """
    records = [RunRecord.read(path) for path in sorted((home() / "runs").glob(f"*/{RECORD}"), reverse=True)]
    return [record for record in records if policy in (None, record.policy)]


def alive_lock(run_id: str) -> Path:
    """The lock file that a run's process holds for as long as it lives; raises `ConfigError` for what is no run's
    id."""
    return run_folder(run_id) / "alive.lock"


def is_alive(run_id: str) -> bool:
    """Whether the run's process still lives, on this machine; False for a run that is not there."""
    return is_held(alive_lock(run_id))

"""A run's record and folders: what tasks read, and where they write what they found."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loomrl.errors import GateRefused
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.storage import provenance
from loomrl.storage.run_record import RunRecord, StageRecord, read_run, run_folder, write_run
from loomrl.system.home import project_root
from loomrl.types import Json


@dataclass
class StageEntry:
    """What a stage's task fills in while the stage runs."""

    status: str = "ran"
    verdict: str = ""
    digest: str | None = None
    lock: dict[str, Any] | None = None
    plugins: list[str] = field(default_factory=list)


@contextmanager
def recorded(run_id: str, stage: str) -> Iterator[StageEntry]:
    """Time a stage and add it to the run's record, whether it ends well or not."""
    entry, started = StageEntry(), time.monotonic()
    try:
        yield entry
    except GateRefused as refusal:
        entry.status, entry.verdict = "refused", str(refusal)
        raise
    except BaseException as error:
        entry.status, entry.verdict = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        _add_stage(run_id, stage, entry, time.monotonic() - started)


def dvc_hashes(locks: Mapping[str, Json | None]) -> dict[str, str]:
    """Tags with DVC's hash of each stage's output, from the stages' entries in `dvc.lock`."""
    outputs = {name: provenance.output_hashes(lock) for name, lock in locks.items() if lock}
    return {f"dvc.{name}": digest for name, paths in outputs.items() for digest in paths.values()}


def run_config(run_id: str) -> PolicyConfig:
    """The effective config of a run."""
    return PolicyConfig.model_validate(read_run(run_id).config)


def project_folders(run_id: str) -> Folders:
    """The project's artifacts, as stages 1-5 write them."""
    return Folders(project_root(), read_run(run_id).policy)


def run_folders(run_id: str) -> Folders:
    """The run's own copy of the artifacts, which later runs do not touch."""
    return Folders(run_folder(run_id), read_run(run_id).policy)


def update(run_id: str, **changes: Any) -> RunRecord:
    """Change fields of a run's record and write it."""
    record = read_run(run_id).model_copy(update=changes)
    write_run(record)
    return record


def _add_stage(run_id: str, stage: str, entry: StageEntry, seconds: float) -> None:
    done = StageRecord(
        name=stage,
        status=entry.status,
        seconds=seconds,
        verdict=entry.verdict,
        digest=entry.digest,
        lock=entry.lock,
        plugins=entry.plugins,
    )
    earlier = [other for other in read_run(run_id).stages if other.name != stage]
    update(run_id, stages=[*earlier, done])

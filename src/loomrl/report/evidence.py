"""Keeps a run's evidence: copies what the report needs out of `artifacts/`, which the next run overwrites.

The copies lie in `RUN/evidence/STAGE-DIGEST/`. A folder of artifacts whose digest is not the one the run recorded
belongs to another run and is never shown.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.files import digest_folder
from loomrl.runs import RunRecord, StageRecord, run_folder
from loomrl.stages import ORDER

SUFFIXES = {".json", ".png", ".gif", ".webp", ".jpg"}
LARGEST_FILE = 32 * 2**20  # bytes; larger ones stay in artifacts/


@dataclass(frozen=True)
class StageEvidence:
    """Where a stage's files lie, or why they do not."""

    folder: Path | None
    missing_because: str | None = None


def keep_evidence(record: RunRecord, project: Path) -> dict[str, StageEvidence]:
    """Copy the files of stages 1-5 that the report shows; stage name -> where they are, or why not."""
    recorded = {stage.name: stage for stage in record.stages}
    return {name: _keep(recorded.get(name), name, record, project) for name in ORDER}


def _keep(stage: StageRecord | None, name: str, record: RunRecord, project: Path) -> StageEvidence:
    if stage is None:
        return StageEvidence(None, f"The run did not reach this stage; it ended as “{record.state}”.")
    source = project / "artifacts" / record.policy / name
    kept = run_folder(record.run_id) / "evidence" / f"{name}-{(stage.digest or 'unfinished')[:16]}"
    if kept.is_dir():
        return StageEvidence(kept)
    if not source.is_dir():
        return StageEvidence(None, f"The stage {_ended(stage)} and left no files.")
    if stage.digest is not None and digest_folder(source) != stage.digest:
        return StageEvidence(
            None,
            f"artifacts/{record.policy}/{name} now holds another run's output (digest not {stage.digest[:12]}…). "
            "`dvc checkout` with this run's dvc.lock brings it back; then build the report again.",
        )
    _copy(source, kept)
    return StageEvidence(kept)


def _ended(stage: StageRecord) -> str:
    return {"failed": "failed", "refused": "was refused"}.get(stage.status, f"ended as “{stage.status}”")


def _copy(source: Path, kept: Path) -> None:
    """Copy to a temporary folder and rename: half a copy is never taken for a whole one."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=kept.parent) as folder:
            copy = Path(folder) / kept.name
            copy.mkdir()
            for path in sorted(source.iterdir()):
                if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= LARGEST_FILE:
                    shutil.copyfile(path, copy / path.name)
            copy.rename(kept)
    except OSError as error:
        raise ArtifactError(f"cannot copy {source} to {kept}: {error.strerror}; check space and permissions") from error

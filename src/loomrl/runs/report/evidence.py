"""Finds the files of stages 1-5 that belong to a run.

A life cycle copies its artifacts into the run's folder. Where it died before that, what the report shows is copied out
of the project's `artifacts/` into `RUN/evidence/STAGE-DIGEST/`, because the next run overwrites them. A folder whose
digest is not the one the run recorded belongs to another run and is never shown.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.runs.stages import ORDER
from loomrl.storage.run_record import RunRecord, StageRecord, run_folder
from loomrl.system.files import SUMS, digest_folder, recorded_sums, sums, write_sums

SUFFIXES = {".json", ".png", ".gif", ".webp", ".jpg"}
LARGEST_FILE = 32 * 2**20  # bytes; larger ones stay in artifacts/


@dataclass(frozen=True)
class StageEvidence:
    """The folder of a stage's files, or, where that is None, why there is none (`missing_because`)."""

    folder: Path | None
    missing_because: str | None = None
    is_copy: bool = False  # of the files that are shown; its `SHA256SUMS` names all the stage left

    def sums(self) -> dict[str, str] | None:
        """Name -> SHA-256 of every file the stage left; None where that is not known.

        Raises:
            ArtifactError: when `SHA256SUMS`, or a file, cannot be read.
        """
        if self.folder is None:
            return None
        if not self.is_copy:
            return sums(self.folder)
        return recorded_sums(self.folder) if (self.folder / SUMS).is_file() else None  # older copies have none


def keep_evidence(record: RunRecord, project: Path) -> dict[str, StageEvidence]:
    """Name of each of the five stages -> where its files are, or why there are none.

    What lies in the project's `artifacts/` alone is copied into the run's folder, so that it stays when that changes.

    Raises:
        ArtifactError: when a file cannot be read or copied; no part of a copy is left.
    """
    recorded = {stage.name: stage for stage in record.stages}
    return {name: _keep(recorded.get(name), name, record, project) for name in ORDER}


def _keep(stage: StageRecord | None, name: str, record: RunRecord, project: Path) -> StageEvidence:
    if stage is None:
        return StageEvidence(None, f"The run did not reach this stage; it ended as “{record.state}”.")
    if stage.status == "failed":
        return StageEvidence(None, "The stage failed; what it left is not evidence.")
    copied = run_folder(record.run_id) / "artifacts" / record.policy / name
    if copied.is_dir() and _is_the_stages(copied, stage):
        return StageEvidence(copied)
    source = project / "artifacts" / record.policy / name
    kept = run_folder(record.run_id) / "evidence" / f"{name}-{(stage.digest or 'unfinished')[:16]}"
    if kept.is_dir():
        return StageEvidence(kept, is_copy=True)
    if not source.is_dir():
        return StageEvidence(None, f"The stage {_ended(stage)} and left no files.")
    if not _is_the_stages(source, stage):
        return StageEvidence(
            None,
            f"artifacts/{record.policy}/{name} now holds another run's output: its digest is not {stage.digest}. "
            "`dvc checkout` with this run's dvc.lock brings it back; then build the report again.",
        )
    _copy(source, kept)
    return StageEvidence(kept, is_copy=True)


def _is_the_stages(folder: Path, stage: StageRecord) -> bool:
    """A refused stage records no digest: DVC had emptied its folder before it ran, so what is there is its own."""
    return stage.digest is None or digest_folder(folder) == stage.digest


def _ended(stage: StageRecord) -> str:
    return "was refused" if stage.status == "refused" else f"ended as “{stage.status}”"


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
            write_sums(copy, of=source)
            copy.rename(kept)
    except OSError as error:
        raise ArtifactError(f"cannot copy {source} to {kept}: {error.strerror}; check space and permissions") from error

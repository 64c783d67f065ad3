"""Builds a run's report."""

from pathlib import Path

from loomrl.runs.report.evidence import keep_evidence
from loomrl.runs.report.gather import gather_report
from loomrl.runs.report.render import render_page
from loomrl.storage.run_record import RECORD, read_run, run_folder
from loomrl.system.files import write_atomic

PAGE, DATA = "report.html", "report.json"


def build_report(run_id: str, project: Path) -> Path:
    """Write `report.html` and `report.json` into the run's folder; returns the page's path.

    Works for a run in any state: what is missing is named, with the reason. `project` holds `artifacts/`; the evidence
    shown lies in the run's folder or is copied there, so that building again gives the same facts after another run
    has overwritten `artifacts/`.

    Raises:
        ConfigError: when there is no such run.
        ArtifactError: when the record is corrupt or the run's folder cannot be written.
    """
    record = read_run(run_id)
    evidence = keep_evidence(record, project)
    report = gather_report(record, evidence)
    folder = run_folder(run_id)
    report.write(folder / DATA)
    write_atomic(folder / PAGE, render_page(report, evidence).encode())
    return folder / PAGE


def is_current(run_id: str) -> bool:
    """Whether both files of a report exist and are not older than the run's record.

    Raises:
        ConfigError: for what is no name of a run.
        OSError: when there is a report and no record.
    """
    folder = run_folder(run_id)
    record, written = folder / RECORD, [folder / PAGE, folder / DATA]
    return all(path.is_file() and path.stat().st_mtime >= record.stat().st_mtime for path in written)

"""Reads what a run left behind into a `RunReport`. What is missing or unreadable is said, never guessed."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from loomrl.errors import ArtifactError
from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.evaluation.evaluate import digest_measured
from loomrl.runs.report.chain import check_chain
from loomrl.runs.report.curves import read_curves
from loomrl.runs.report.document import STAGES, Picture, RunOutcome, RunReport, StageFacts
from loomrl.runs.report.evidence import StageEvidence
from loomrl.runs.report.lineage import derive_lineage
from loomrl.storage.run_record import RunRecord, now, run_folder
from loomrl.system.files import files_below, read_json, sha256_file
from loomrl.system.plugins import installed_version
from loomrl.types import (
    EnvironmentSnapshot,
    EvaluationReport,
    Json,
    ParityReport,
    PolicyManifest,
    SafetyCase,
    TrainingReport,
)

T = TypeVar("T")
MEDIA_TYPES = {".png": "image/png", ".gif": "image/gif", ".webp": "image/webp", ".jpg": "image/jpeg"}
_BEGINNINGS = {".png": b"\x89PNG\r\n", ".gif": b"GIF8", ".webp": b"RIFF", ".jpg": b"\xff\xd8\xff"}
KEPT_SUFFIXES = {".json", ".yaml", ".lock", ".patch"}
DISTRIBUTIONS = (
    "loomrl", "torch", "gymnasium", "numpy", "onnx", "onnxruntime", "dvc", "mlflow", "prefect", "great-expectations",
)  # fmt: skip
OUTCOMES = {
    "promoted": ("Promoted", "good"),
    "unchanged": ("Unchanged", "good"),
    "waiting": ("Waiting for approval", "warn"),
    "refused": ("Refused", "bad"),
    "failed": ("Failed", "bad"),
    "crashed": ("Crashed", "bad"),
    "running": ("Running", "info"),
}


class Reader:
    """Reads documents from the evidence of one run; `missing` says by stage why something is not there or cannot be
    read."""

    def __init__(self, evidence: dict[str, StageEvidence]) -> None:
        self.missing = {stage: found.missing_because for stage, found in evidence.items() if found.missing_because}
        self._evidence = evidence
        self._folders = {stage: found.folder for stage, found in evidence.items() if found.folder}

    def path(self, stage: str, name: str) -> Path | None:
        """The path of a file of a stage's evidence; None where it is not there. Only the last part of `name` counts."""
        folder = self._folders.get(stage)
        path = folder / Path(name).name if folder else None
        return path if path and path.is_file() else None

    def read(self, stage: str, name: str, parse: Callable[[Path], T]) -> T | None:
        """What `parse` makes of a file; None, with a note why in `missing`, where the file is missing or does not hold
        what it should."""
        if stage not in self._folders:
            return None
        path = self.path(stage, name)
        if path is None:
            self.missing.setdefault(stage, f"The stage left no {name}.")
            return None
        try:
            return parse(path)
        except (ArtifactError, KeyError, TypeError, ValueError) as error:
            # A report must show a run whose artifacts are broken, and say that they are.
            self.missing[stage] = f"{name} cannot be read: {error!r}"
            return None

    def sums(self, stage: str) -> dict[str, str] | None:
        """Name -> SHA-256 of the files a stage left; None where that is not known: why, stands in `missing`."""
        try:
            return self._evidence[stage].sums() if stage in self._folders else None
        except ArtifactError as error:
            self.missing[stage] = str(error)
            return None


def gather_report(record: RunRecord, evidence: dict[str, StageEvidence]) -> RunReport:
    """All facts about a run, from its record and the evidence kept with it, by stage, which `keep_evidence` gives.

    What is missing, or cannot be read, is None or empty in the report, and its stage says why.

    Raises:
        ArtifactError: when a file that is there cannot be read.
    """
    reader = Reader(evidence)
    environment = reader.read("environment", "snapshot.json", EnvironmentSnapshot.read)
    training = reader.read("training", "training.json", TrainingReport.read)
    threshold = environment.spec.reward_threshold if environment else None
    curves = reader.read("training", "curves.json", lambda path: read_curves(read_json(path), threshold))
    evaluation = reader.read("evaluation", "evaluation.json", EvaluationReport.read)
    validation = reader.read("evaluation", VALIDATION, DataValidation.read)
    safety = reader.read("safety", "case.json", SafetyCase.read)
    manifest = reader.read("export", "manifest.json", PolicyManifest.read)
    parity = reader.read("export", "parity.json", ParityReport.read)
    case = reader.path("safety", "case.json")
    return RunReport(
        written=now(),
        outcome=_outcome(record),
        run=record,
        stages=_stages(record, reader.missing),
        environment=environment,
        training=training,
        curves=curves or [],
        evaluation=evaluation,
        data_validation=validation,
        safety=safety,
        manifest=manifest and manifest.model_copy(update={"probe_observations": [], "probe_actions": []}),
        parity=parity,
        pictures=_pictures(reader, evaluation),
        chain=check_chain(environment, training, evaluation, safety, manifest, sha256_file(case) if case else None),
        lineage=derive_lineage(record, environment.digest if environment else None),
        digests=_digests(environment, training, _evaluation_digest(reader, evaluation, safety), manifest, case),
        versions=_versions(environment, safety),
        files=_files(record.run_id),
    )


def _outcome(record: RunRecord) -> RunOutcome:
    word, tone = OUTCOMES.get(record.state, (record.state.capitalize(), "info"))
    acts = record.state in ("promoted", "unchanged") and record.version is not None
    return RunOutcome(
        word=word,
        tone=tone,
        sentence=_sentence(record),
        champion_before=record.champion_before,
        champion_after=record.version if acts else record.champion_before,
    )


def _sentence(record: RunRecord) -> str:
    """What happened, in one sentence; the reasons stand in the promotion's own section."""
    version, before = record.version, record.champion_before
    if record.state == "promoted":
        return f"Version {version} " + (
            f"replaces version {before} as champion." if before else "is the first champion."
        )
    if record.state == "unchanged":
        return f"Version {version} stays champion: nothing it depends on has changed."
    if record.state == "waiting":
        command = f"`loomrl policy approve {record.run_id}` or `loomrl policy reject {record.run_id}`"
        return f"Version {version} meets the rules and waits for a person: {command}."
    return record.message


def _stages(record: RunRecord, missing: dict[str, str]) -> list[StageFacts]:
    recorded = {stage.name: stage for stage in record.stages}
    rows = []
    for position, (name, purpose) in enumerate(STAGES.items(), start=1):
        reached = recorded.get(name)
        facts: Json = reached.model_dump(exclude={"name"}) if reached else {"status": "not reached"}
        because = missing.get(name)
        if name in ("shadow", "promotion") and (record.shadow if name == "shadow" else record.decision) is None:
            because = (
                "The stage left no report." if reached else f"The run ended as “{record.state}” before this stage."
            )
        rows.append(StageFacts(number=position, name=name, purpose=purpose, missing_because=because, **facts))
    return rows


def _pictures(reader: Reader, evaluation: EvaluationReport | None) -> list[Picture]:
    names = [evaluation.picture, evaluation.replay] if evaluation else []
    found = [reader.path("evaluation", name) for name in names if name]
    return [
        Picture(
            stage="evaluation",
            name=path.name,
            media_type=MEDIA_TYPES[path.suffix],
            sha256=sha256_file(path),
            num_bytes=path.stat().st_size,
        )
        for path in found
        if path and path.suffix in MEDIA_TYPES and _is_picture(path)
    ]


def _evaluation_digest(reader: Reader, evaluation: EvaluationReport | None, safety: SafetyCase | None) -> str | None:
    """The one the safety case is about; of a run that stopped before its case, that of the stage's files."""
    if safety:
        return safety.evaluation_digest
    file_sums = reader.sums("evaluation")
    return digest_measured(evaluation, file_sums) if evaluation and file_sums else None


def _is_picture(path: Path) -> bool:
    """Whether it begins as what its name says: a link of that name may lead to a file that nobody is to see."""
    with path.open("rb") as file:
        return file.read(16).startswith(_BEGINNINGS[path.suffix])


def _digests(
    environment: EnvironmentSnapshot | None,
    training: TrainingReport | None,
    evaluation_digest: str | None,
    manifest: PolicyManifest | None,
    case: Path | None,
) -> dict[str, str]:
    found: dict[str, Any] = {
        "environment snapshot": environment and environment.digest,
        "environment source": environment and environment.source_digest,
        "dynamics, exact": environment and environment.dynamics.exact,
        "dynamics, toleranced": environment and environment.dynamics.toleranced,
        "policy weights": training and training.policy_digest,
        "evaluation data": evaluation_digest,
        "safety case": sha256_file(case) if case else None,
        "policy.onnx": manifest and manifest.onnx_sha256,
    }
    return {name: digest for name, digest in found.items() if digest}


def _versions(environment: EnvironmentSnapshot | None, safety: SafetyCase | None) -> dict[str, str]:
    """What is installed where the report is written, then what the snapshot and the case recorded."""
    versions = {name: installed_version(name) or "not installed" for name in DISTRIBUTIONS}
    recorded = (environment.dependencies if environment else {}) | (safety.tools if safety else {})
    return {"python": platform.python_version(), **versions, **recorded}


def _files(run_id: str) -> dict[str, str]:
    """The files beside the report and in the version's package; artifacts and progress events have their own sums."""
    folder = run_folder(run_id)
    package = folder / "version"
    beside = [path for path in folder.iterdir() if path.is_file() and path.suffix in KEPT_SUFFIXES]
    paths = sorted(beside) + (files_below(package) if package.is_dir() else [])
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in paths
        if path.name not in ("report.html", "report.json", "alive.lock")
    }

"""The examined artifacts are what they say: every digest in the chain is computed again."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from loomrl.errors import LoomRLError
from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.evaluation.evaluate import REPORT
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.check import PROVENANCE, CheckConfig, Context, Scope
from loomrl.system.files import SUMS, sha256_file, verify_sums
from loomrl.types import Bound, Claim, ClaimLabel, EvaluationReport, LabelKind, TrainingReport, Verdict

NAME = "provenance"
STAGE = PROVENANCE
LOCAL = False


class ProvenanceConfig(CheckConfig):
    """Nothing to set: a broken chain of evidence cannot be tolerated in part. It cannot be switched off."""


Config = ProvenanceConfig  # as all plug-ins of this kind name it


_STATEMENTS = {
    "files": "every file of the examined stages has the digest in its stage's manifest",
    "policy": "training, evaluation and this case are about the same policy weights",
    "snapshot": "training, evaluation and this case are about the same environment snapshot",
    "evaluation_data": "the evaluation data passed the data gate",
}


class _Folders(NamedTuple):
    """What the stages before this one left."""

    environment: Path
    evaluation: Path
    training: Path


class Mismatch(Exception):
    """Raised inside the check where two digests differ, or a gate had failed: the claim is refuted."""


class Unknown(Exception):
    """Raised inside the check where there is nothing to compare a digest with: the claim is undecided."""


def examine(context: Context, config: ProvenanceConfig) -> list[Claim]:  # noqa: ARG001 - a check's signature
    """Four claims: whole files, the policy, the snapshot, valid evaluation data.

    Raises:
        ArtifactError: when a report of training or evaluation, or the policy's weights, cannot be read.
    """
    assert context.policy_folder is not None, "provenance is not a local check"
    folders = _Folders(context.snapshot_folder, context.evaluation_folder, context.policy_folder)
    return [_claim(context, folders, name, statement) for name, statement in _STATEMENTS.items()]


def replay(failure: Failure) -> Replayed:
    """Compare the records again: reproduced where they contradict each other in the same words.

    Raises:
        ArtifactError: when a report of training or evaluation cannot be read.
    """
    folders = _Folders(failure.snapshot_folder, failure.evaluation_folder, failure.policy_folder)
    verdict, finding = _compared(failure.claim.id.removeprefix(f"{NAME}."), folders)
    is_same = verdict is Verdict.REFUTED and finding == failure.document["finding"]
    return Replayed(reproduced=is_same, finding=finding)


def scope(config: ProvenanceConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"digests and verdicts that the stages wrote: {claim.finding}",
        "anything about how the policy behaves, or that whoever wrote the records was honest",
        "a file, digest or verdict that is not the one the stage's report names",
    )


def _claim(context: Context, folders: _Folders, name: str, statement: str) -> Claim:
    verdict, finding = _compared(name, folders)
    refuted = verdict is Verdict.REFUTED
    return context.claim(
        {"kind": NAME, "finding": finding},
        name,
        failure=finding if refuted else None,
        statement=statement,
        method="SHA-256 computed again and compared",
        verdict=verdict,
        assumptions=["SHA-256 has no known collisions"],
        bound=Bound(kind="count", measured=int(refuted), limit=0, unit="mismatches"),
        finding=finding,
        label=ClaimLabel(kind=LabelKind.RECORD, reason="it compares what the stages of the same run wrote"),
    )


def _compared(name: str, folders: _Folders) -> tuple[Verdict, str]:
    try:
        return Verdict.PROVED, _TESTS[name](folders)
    except Mismatch as mismatch:
        return Verdict.REFUTED, str(mismatch)
    except Unknown as unknown:
        return Verdict.UNDECIDED, str(unknown)


def _files(folders: _Folders) -> str:
    for stage, folder in folders._asdict().items():
        if not (folder / SUMS).is_file():
            raise Unknown(f"{stage} has no {SUMS}; run the stage with `python -m loomrl.runs.stages`, which writes it")
        try:
            verify_sums(folder)
        except LoomRLError as error:
            raise Mismatch(f"{stage}: {_relative(str(error), folder)}") from error
    return f"{SUMS} of {', '.join(folders._fields)} hold"


def _relative(message: str, folder: Path) -> str:
    """The message without this machine's path: a case holds none."""
    return message.replace(f"{folder}/", "").replace(str(folder), folder.name)


def _policy(folders: _Folders) -> str:
    from loomrl.algorithms.policies.policy import WEIGHTS

    return _named_alike(folders, "policy", sha256_file(folders.training / WEIGHTS), "the weights are")


def _snapshot(folders: _Folders) -> str:
    from loomrl.environment.snapshots.snapshot import load_snapshot

    return _named_alike(folders, "snapshot", load_snapshot(folders.environment).digest, "the snapshot is")


def _named_alike(folders: _Folders, what: str, digest: str, itself: str) -> str:
    """The reports of training and evaluation name this digest; raises `Mismatch` where one does not."""
    training = TrainingReport.read(folders.training / "training.json")
    evaluation = EvaluationReport.read(folders.evaluation / REPORT)
    for name, report in (("training", training), ("evaluation", evaluation)):
        if (found := getattr(report, f"{what}_digest")) != digest:
            raise Mismatch(f"the {name} report names {what} {found}, {itself} {digest}")
    return f"{what} {digest}"


def _evaluation_data(folders: _Folders) -> str:
    validation = DataValidation.read(folders.evaluation / VALIDATION)
    report = EvaluationReport.read(folders.evaluation / REPORT)
    if not (validation.success and report.data_valid):
        raise Mismatch(f"{validation.num_failed} of {validation.num_expectations} expectations failed")
    return f"all {validation.num_expectations} expectations hold"


_TESTS: dict[str, Callable[[_Folders], str]] = {
    "files": _files, "policy": _policy, "snapshot": _snapshot, "evaluation_data": _evaluation_data,
}  # fmt: skip

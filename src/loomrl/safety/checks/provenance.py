"""The examined artifacts are what they say: every digest in the chain is computed again."""

from collections.abc import Callable
from pathlib import Path

from loomrl.errors import LoomRLError
from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.evaluation.evaluate import REPORT
from loomrl.safety.check import PROVENANCE, CheckConfig, Context, Scope
from loomrl.system.files import SUMS, sha256_file, verify_sums
from loomrl.types import Bound, Claim, ClaimLabel, EvaluationReport, LabelKind, TrainingReport, Verdict

NAME = "provenance"
STAGE = PROVENANCE
LOCAL = False


class ProvenanceConfig(CheckConfig):
    """Nothing to set: a broken chain of evidence cannot be tolerated in part. It cannot be switched off."""


Config = ProvenanceConfig  # as all plug-ins of this kind name it


class Mismatch(Exception):
    """Raised inside the check where two digests differ, or a gate had failed: the claim is refuted."""


class Unknown(Exception):
    """Raised inside the check where there is nothing to compare a digest with: the claim is undecided."""


def examine(context: Context, config: ProvenanceConfig) -> list[Claim]:  # noqa: ARG001 - a check's signature
    """Four claims: whole files, the policy, the snapshot, valid evaluation data.

    Raises:
        ArtifactError: when a report of training or evaluation, or the policy's weights, cannot be read.
    """
    examined: list[tuple[str, str, Callable[[Context], str]]] = [
        ("files", "every file of the examined stages has the digest in its stage's manifest", _files),
        ("policy", "training, evaluation and this case are about the same policy weights", _policy),
        ("snapshot", "training, evaluation and this case are about the same environment snapshot", _snapshot),
        ("evaluation_data", "the evaluation data passed the data gate", _evaluation_data),
    ]
    return [_claim(context, *each) for each in examined]


def scope(config: ProvenanceConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"digests and verdicts that the stages wrote: {claim.finding}",
        "anything about how the policy behaves, or that whoever wrote the records was honest",
        "a file, digest or verdict that is not the one the stage's report names",
    )


def _claim(context: Context, name: str, statement: str, test: Callable[[Context], str]) -> Claim:
    verdict, mismatches = Verdict.PROVED, 0
    try:
        finding = test(context)
    except Mismatch as mismatch:
        verdict, finding, mismatches = Verdict.REFUTED, str(mismatch), 1
    except Unknown as unknown:
        verdict, finding = Verdict.UNDECIDED, str(unknown)
    return context.claim(
        {"kind": NAME, "finding": finding},
        name,
        statement=statement,
        method="SHA-256 computed again and compared",
        verdict=verdict,
        assumptions=["SHA-256 has no known collisions"],
        bound=Bound(kind="count", measured=mismatches, limit=0, unit="mismatches"),
        finding=finding,
        label=ClaimLabel(kind=LabelKind.RECORD, reason="it compares what the stages of the same run wrote"),
    )


def _files(context: Context) -> str:
    folders = _folders(context)
    for stage, folder in folders.items():
        if not (folder / SUMS).is_file():
            raise Unknown(f"{stage} has no {SUMS}; run the stage with `python -m loomrl.runs.stages`, which writes it")
        try:
            verify_sums(folder)
        except LoomRLError as error:
            raise Mismatch(f"{stage}: {_relative(str(error), folder)}") from error
    return f"{SUMS} of {', '.join(folders)} hold"


def _relative(message: str, folder: Path) -> str:
    """The message without this machine's path: a case holds none."""
    return message.replace(f"{folder}/", "").replace(str(folder), folder.name)


def _policy(context: Context) -> str:
    from loomrl.algorithms.policies.policy import WEIGHTS

    return _named_alike(context, "policy", sha256_file(_folders(context)["training"] / WEIGHTS), "the weights are")


def _snapshot(context: Context) -> str:
    from loomrl.environment.snapshots.snapshot import load_snapshot

    return _named_alike(context, "snapshot", load_snapshot(context.snapshot_folder).digest, "the snapshot is")


def _named_alike(context: Context, what: str, digest: str, itself: str) -> str:
    """The reports of training and evaluation name this digest; raises `Mismatch` where one does not."""
    training = TrainingReport.read(_folders(context)["training"] / "training.json")
    evaluation = EvaluationReport.read(context.evaluation_folder / REPORT)
    for name, report in (("training", training), ("evaluation", evaluation)):
        if (found := getattr(report, f"{what}_digest")) != digest:
            raise Mismatch(f"the {name} report names {what} {found}, {itself} {digest}")
    return f"{what} {digest}"


def _evaluation_data(context: Context) -> str:
    validation = DataValidation.read(context.evaluation_folder / VALIDATION)
    report = EvaluationReport.read(context.evaluation_folder / REPORT)
    if not (validation.success and report.data_valid):
        raise Mismatch(f"{validation.num_failed} of {validation.num_expectations} expectations failed")
    return f"all {validation.num_expectations} expectations hold"


def _folders(context: Context) -> dict[str, Path]:
    assert context.policy_folder is not None, "provenance is not a local check"
    return {
        "environment": context.snapshot_folder,
        "evaluation": context.evaluation_folder,
        "training": context.policy_folder,
    }

"""What is registered as a version: the export with the signed envelope, the case and the episodes it is compared by."""

import shutil
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.promotion.envelope import CASE, ENVELOPE, EPISODES, EVALUATION, RunFacts, build_envelope
from loomrl.system.files import SUMS, verify_sums
from loomrl.types import SafetyCase


def build_package(artifacts: Path, destination: Path, facts: RunFacts) -> Path:
    """Collect a version's files from the stages' outputs `artifacts/{export,safety,evaluation}` into a new folder.

    Returns `destination`. What was there is replaced once the stages' outputs were checked; an error after that leaves
    it incomplete, without an envelope.

    Raises:
        ArtifactError: when an output differs from its manifest, or the outputs do not belong together.
        ConfigError: when there is no usable key to sign with.
    """
    for stage in ("export", "safety", "evaluation"):
        verify_sums(artifacts / stage)
    _check_case(artifacts / "safety")
    _check_evaluated(artifacts)
    if destination.exists():
        shutil.rmtree(destination)
    shutil.copytree(artifacts / "export", destination)
    for stage, name in (("safety", CASE), ("evaluation", EPISODES), ("evaluation", EVALUATION)):
        _copy(artifacts / stage / name, destination / name)
    build_envelope(destination, facts).write(destination / ENVELOPE)
    return destination


def _check_case(folder: Path) -> None:
    """A manifest can be written anew: the case itself cites its evidence, and its decision follows from its claims."""
    from loomrl.safety.case.document import check_case

    if problems := check_case(folder):
        raise ArtifactError(f"{folder / CASE} does not hold: {'; '.join(problems)}; run the stages again")


def _check_evaluated(artifacts: Path) -> None:
    """The episodes that decide promotion are those the safety case was made on."""
    from loomrl.evaluation.evaluate import evaluation_digest

    stated = SafetyCase.read(artifacts / "safety" / CASE).evaluation_digest
    found = evaluation_digest(artifacts / "evaluation")
    if found != stated:
        raise ArtifactError(
            f"{artifacts / 'evaluation'} is {found[:16]}, but the safety case was made on {stated[:16]}; "
            "run the stages again"
        )


def _copy(source: Path, target: Path) -> None:
    if target.name == SUMS or target.exists():
        raise ArtifactError(f"{target} is there twice: {source} and the export; run `dvc repro` from a clean state")
    if not source.is_file():
        raise ArtifactError(f"{source} is missing; run the stage that writes it")
    shutil.copy2(source, target)

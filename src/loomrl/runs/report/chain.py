"""The chain of evidence: every document names, by digest, what it is about; these must agree."""

from loomrl.runs.report.document import ChainLink
from loomrl.types import (
    EnvironmentSnapshot,
    EvaluationReport,
    PolicyManifest,
    SafetyCase,
    TrainingReport,
)


def check_chain(
    environment: EnvironmentSnapshot | None,
    training: TrainingReport | None,
    evaluation: EvaluationReport | None,
    safety: SafetyCase | None,
    manifest: PolicyManifest | None,
    case_sha256: str | None,
) -> list[ChainLink]:
    """One link for every digest that one of these documents quotes from another, also where the two differ.

    None stands for a document that is not there; it has no links.
    """
    links = []
    readers = {"training": training, "evaluation": evaluation, "safety case": safety, "manifest": manifest}
    for name, document in readers.items():
        if environment is not None and document is not None:
            statement = f"The {name} is about this environment snapshot"
            links.append(ChainLink(statement=statement, expected=environment.digest, found=document.snapshot_digest))
    for name, about in {"evaluation": evaluation, "safety case": safety, "manifest": manifest}.items():
        if training is not None and about is not None:
            statement = f"The {name} is about this trained policy"
            links.append(ChainLink(statement=statement, expected=training.policy_digest, found=about.policy_digest))
    if manifest is not None and case_sha256 is not None:
        statement = "The manifest quotes this safety case"
        links.append(ChainLink(statement=statement, expected=case_sha256, found=manifest.case_sha256))
    return links

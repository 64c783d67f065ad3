"""Every claim of a case examined again, from the policy, the snapshot and the evaluation it is about."""

import tempfile
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.safety.case import case_file, read_case
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import build_case
from loomrl.schema import Document
from loomrl.types import Claim, SafetyCase, Verdict


class Examined(Document):
    """What a claim says, and what came out this time; None where there is no such claim."""

    claim: str
    verdict: Verdict | None
    again: Verdict | None
    identical: bool  # numbers, finding and evidence are equal to the last digit


class Rerun(Document):
    """A case beside the same one made again."""

    claims: list[Examined]

    @property
    def differing(self) -> list[Examined]:
        """Claims with another verdict, or that only one of both has."""
        return [claim for claim in self.claims if claim.verdict != claim.again]


def rerun(place: Path, config: SafetyConfig, snapshot: Path, policy: Path, evaluation: Path) -> Rerun:
    """Build the case again, into a folder that is thrown away, and compare.

    Raises:
        ArtifactError: when snapshot, policy or evaluation are not the ones the case is about.
        ConfigError: when the config does not fit them.
    """
    case = read_case(place)
    with tempfile.TemporaryDirectory(prefix="loomrl-rerun-") as folder:
        again = build_case(config, snapshot, policy, evaluation, Path(folder))
    for what, where, found, wanted in (
        ("environment snapshot", snapshot, again.snapshot_digest, case.snapshot_digest),
        ("policy", policy, again.policy_digest, case.policy_digest),
        ("evaluation", evaluation, again.evaluation_digest, case.evaluation_digest),
    ):
        if found != wanted:
            raise ArtifactError(f"the {what} in {where} is {found}, {case_file(place)} is about {wanted}; restore it")
    return _compared(case, again)


def _compared(case: SafetyCase, again: SafetyCase) -> Rerun:
    before, after = ({claim.id: claim for claim in one.claims} for one in (case, again))
    return Rerun(
        claims=[_examined(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    )


def _examined(name: str, before: Claim | None, after: Claim | None) -> Examined:
    return Examined(
        claim=name,
        verdict=before.verdict if before else None,
        again=after.verdict if after else None,
        identical=before is not None and after is not None and _unplaced(before) == _unplaced(after),
    )


def _unplaced(claim: Claim) -> Claim:
    """Without the command that replays its counterexample, which names the case's folder."""
    if claim.counterexample is None:
        return claim
    return claim.model_copy(update={"counterexample": claim.counterexample.model_copy(update={"replay_command": None})})

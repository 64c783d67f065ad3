"""Every claim of a case examined again, from the policy, the snapshot and the evaluation it is about."""

import tempfile
from pathlib import Path

from pydantic import Field

from loomrl.algorithms.policy import WEIGHTS
from loomrl.environment.snapshot import load_snapshot
from loomrl.errors import ArtifactError
from loomrl.evaluation.evaluate import evaluation_digest
from loomrl.files import sha256_file
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
    changed: list[str] = Field(default_factory=list)  # what it says that cannot depend on the machine


class Rerun(Document):
    """A case beside the same one made again."""

    claims: list[Examined]
    changed: list[str] = Field(default_factory=list)  # parts of the case beside its claims

    @property
    def differing(self) -> list[Examined]:
        """Claims with another verdict, or that only one of both has."""
        return [claim for claim in self.claims if claim.verdict != claim.again]

    @property
    def problems(self) -> list[str]:
        """Everything in the case that did not come out again, but for numbers another machine rounds otherwise."""
        found = [f"{one.claim} was {_shown(one.verdict)}, is {_shown(one.again)}" for one in self.differing]
        found += [f"{one.claim}: {name} is another one" for one in self.claims for name in one.changed]
        return found + [f"{name} is not what the claims give" for name in self.changed]


def rerun(place: Path, config: SafetyConfig, snapshot: Path, policy: Path, evaluation: Path) -> Rerun:
    """Build the case again, into a folder that is thrown away, and compare.

    Raises:
        ArtifactError: when snapshot, policy or evaluation are not the ones the case is about.
        ConfigError: when the config does not fit them.
    """
    case = read_case(place)
    for what, where, found, wanted in (
        ("environment snapshot", snapshot, load_snapshot(snapshot).digest, case.snapshot_digest),
        ("policy", policy, sha256_file(policy / WEIGHTS), case.policy_digest),
        ("evaluation", evaluation, evaluation_digest(evaluation), case.evaluation_digest),
    ):
        if found != wanted:
            raise ArtifactError(f"the {what} in {where} is {found}, {case_file(place)} is about {wanted}; restore it")
    with tempfile.TemporaryDirectory(prefix="loomrl-rerun-") as folder:
        again = build_case(config, snapshot, policy, evaluation, Path(folder))
    return _compared(case, again)


def _compared(case: SafetyCase, again: SafetyCase) -> Rerun:
    before, after = ({claim.id: claim for claim in one.claims} for one in (case, again))
    examined = [_examined(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    differs = any(one.verdict != one.again for one in examined)  # then the decision must be another one
    said = [] if differs else ["decision", "controls"]
    changed = [name for name in said if _said(case, name) != _said(again, name)]
    return Rerun(claims=examined, changed=changed)


def _shown(verdict: Verdict | None) -> str:
    return "missing" if verdict is None else verdict.value.removeprefix("statistically_")


def _said(case: SafetyCase, name: str) -> object:
    """The decision's words hold findings, whose last digits depend on the machine."""
    return (case.decision.passed, case.decision.blocking) if name == "decision" else getattr(case, name)


def _examined(name: str, before: Claim | None, after: Claim | None) -> Examined:
    return Examined(
        claim=name,
        verdict=before.verdict if before else None,
        again=after.verdict if after else None,
        identical=before is not None and after is not None and _unplaced(before) == _unplaced(after),
        changed=[] if before is None or after is None else _changed(before, after),
    )


def _changed(before: Claim, after: Claim) -> list[str]:
    names = ("stage", "statement", "mandatory", "method", "assumptions", "confidence", "num_samples", "waiver")
    found = [name for name in names if getattr(before, name) != getattr(after, name)]
    limits = [
        None if one.bound is None else (one.bound.kind, one.bound.limit, one.bound.unit) for one in (before, after)
    ]
    return found + (["limit"] if limits[0] != limits[1] else [])


def _unplaced(claim: Claim) -> Claim:
    """Without the command that replays its counterexample, which names the case's folder."""
    if claim.counterexample is None:
        return claim
    return claim.model_copy(update={"counterexample": claim.counterexample.model_copy(update={"replay_command": None})})

"""Every claim of a case examined again, from the policy, the snapshot and the evaluation it is about."""

import math
import re
import tempfile
from pathlib import Path

from pydantic import Field

from loomrl.algorithms.policies.policy import WEIGHTS
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.errors import ArtifactError
from loomrl.evaluation.evaluate import evaluation_digest
from loomrl.safety.case.document import case_file, read_case
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import build_case
from loomrl.system.files import sha256_file
from loomrl.system.schema import Document
from loomrl.system.threads import processor_family
from loomrl.training.train import REPORT
from loomrl.types import Claim, SafetyCase, TrainingReport, Verdict

_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
_ELSEWHERE = 0.02  # by how much, relative and absolute, another processor's numbers may differ


class Examined(Document):
    """The verdict of a claim in the case, and the one that came out `again`; None where there is no such claim.

    `identical`: numbers, finding and evidence are equal to the last digit. `changed` names the claim's fields that
    differ and cannot depend on the machine.
    """

    claim: str
    verdict: Verdict | None
    again: Verdict | None
    identical: bool  # numbers, finding and evidence are equal to the last digit
    changed: list[str] = Field(default_factory=list)  # its fields that differ, and cannot depend on the machine


class Rerun(Document):
    """A safety case and the same case made again, compared claim by claim.

    `changed` names what differs of the case's decision, controls and tools.
    """

    claims: list[Examined]
    changed: list[str] = Field(default_factory=list)  # of decision, controls and tools, those that differ

    @property
    def differing(self) -> list[Examined]:
        """Claims with another verdict, or that only one of both has."""
        return [claim for claim in self.claims if claim.verdict != claim.again]

    @property
    def problems(self) -> list[str]:
        """Everything in the case that did not come out again, a sentence each, but for what another processor rounds
        otherwise. Empty where all did."""
        found = [f"{one.claim} was {_shown(one.verdict)}, is {_shown(one.again)}" for one in self.differing]
        found += [f"{one.claim}: {name} is another one" for one in self.claims for name in one.changed]
        return found + [f"{name} is not what the claims give" for name in self.changed]


def rerun(place: Path, config: SafetyConfig, snapshot: Path, policy: Path, evaluation: Path) -> Rerun:
    """Build the case again, into a folder that is thrown away, and compare.

    Raises:
        ArtifactError: when the case cannot be read, or snapshot, policy or evaluation are not the ones it is about.
        ConfigError: when the config does not fit them.
        EnvironmentFault: when the environment breaks its API.
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
    exact = TrainingReport.read(policy / REPORT).processor == processor_family()
    return _compared(case, again, exact)


def _compared(case: SafetyCase, again: SafetyCase, exact: bool) -> Rerun:
    before, after = ({claim.id: claim for claim in one.claims} for one in (case, again))
    examined = [_examined(name, before.get(name), after.get(name), exact) for name in dict.fromkeys([*before, *after])]
    differs = any(one.verdict != one.again for one in examined)  # then the decision must be another one
    said = ["tools"] if differs else ["decision", "controls", "tools"]
    changed = [name for name in said if _said(case, name) != _said(again, name)]
    return Rerun(claims=examined, changed=changed)


def _shown(verdict: Verdict | None) -> str:
    return "missing" if verdict is None else verdict.value.removeprefix("statistically_")


def _said(case: SafetyCase, name: str) -> object:
    """The decision's words hold findings, whose last digits depend on the machine."""
    return (case.decision.passed, case.decision.blocking) if name == "decision" else getattr(case, name)


def _examined(name: str, before: Claim | None, after: Claim | None, exact: bool) -> Examined:
    return Examined(
        claim=name,
        verdict=before.verdict if before else None,
        again=after.verdict if after else None,
        identical=before is not None and after is not None and _unplaced(before) == _unplaced(_as_old(after, before)),
        changed=[] if before is None or after is None else _changed(before, after, exact),
    )


def _as_old(after: Claim, before: Claim) -> Claim:
    """Without what a claim of an older case does not say."""
    if before.examined:
        return after
    silent = {"examined": "", "not_established": "", "false_if": "", "label": None, "p_value": None}
    return after.model_copy(update=silent)


def _changed(before: Claim, after: Claim, exact: bool) -> list[str]:
    """What is said otherwise. On the processor of the case everything must come out to the last digit; on another one
    numbers may be a little off, and the evidence's bytes with them."""
    tolerance = 0.0 if exact else _ELSEWHERE
    names = ("stage", "statement", "mandatory", "method", "assumptions", "confidence", "num_samples", "waiver")
    found = [name for name in names if getattr(before, name) != getattr(after, name)]
    limits = [
        None if one.bound is None else (one.bound.kind, one.bound.limit, one.bound.unit) for one in (before, after)
    ]
    found += ["label"] if exact and before.examined and before.label != after.label else []
    found += ["p_value"] if before.examined and not _near(before.p_value, after.p_value, tolerance) else []
    found += ["limit"] if limits[0] != limits[1] else []
    found += ["finding"] if _finding_of(before, exact) != _finding_of(after, exact) else []
    found += ["evidence"] if _cited(before, exact) != _cited(after, exact) else []
    was, is_now = (None if one.bound is None else one.bound.measured for one in (before, after))
    return found + ([] if _near(was, is_now, tolerance) else ["measured"])


def _finding_of(claim: Claim, exact: bool) -> str:
    return claim.finding if exact else _NUMBER.sub("#", claim.finding)


def _cited(claim: Claim, exact: bool) -> list[tuple[str, str]]:
    return [(file.uri, file.sha256 if exact else "") for file in claim.evidence]


def _near(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _unplaced(claim: Claim) -> Claim:
    """Without the command that replays its counterexample, which names the case's folder."""
    if claim.counterexample is None:
        return claim
    return claim.model_copy(update={"counterexample": claim.counterexample.model_copy(update={"replay_command": None})})

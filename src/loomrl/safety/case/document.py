"""Reading a safety case and checking that it and its evidence are whole."""

from pathlib import Path

from loomrl.errors import ArtifactError, ConfigError
from loomrl.safety.case.decision import decide
from loomrl.system.files import canonical_json, sha256_file
from loomrl.types import Claim, Evidence, Json, SafetyCase

CASE = "case.json"
SCHEMA = Path(__file__).parents[1] / "case.schema.json"


def read_case(place: Path) -> SafetyCase:
    """Read a case from its file or its folder.

    Raises:
        ArtifactError: when it is missing or not a safety case.
    """
    return SafetyCase.read(case_file(place))


def case_file(place: Path) -> Path:
    """The path of a case's file, given that file or its folder."""
    return place / CASE if place.is_dir() else place


def find_claim(case: SafetyCase, name: str) -> Claim:
    """The claim of an id; raises `ConfigError` naming those there are."""
    for claim in case.claims:
        if claim.id == name:
            return claim
    raise ConfigError(f"the case has no claim {name!r}; claims: {', '.join(claim.id for claim in case.claims)}")


def check_case(place: Path, with_evidence: bool = True) -> list[str]:
    """What is wrong with a case: not canonical, evidence missing or changed, a decision its claims do not give. Empty
    where nothing is.

    `place` is the case's file or folder. Evidence is left out without `with_evidence`.

    Raises:
        ArtifactError: when the case is missing or not a safety case.
    """
    path = case_file(place)
    case = SafetyCase.read(path)
    problems = []
    try:
        canonical = case.to_bytes()
    except ValueError:  # JSON knows no NaN
        return [f"{path.name} holds a number that is not finite: it was changed after it was written"]
    if path.read_bytes() != canonical:
        problems.append(f"{path.name} is not canonical JSON: it was changed after it was written")
    for evidence in cited_evidence(case) if with_evidence else []:
        problems += _evidence_problems(path.parent, evidence)
    if decide(case.claims) != case.decision:
        problems.append(f"the decision does not follow from the claims: they give {decide(case.claims).reason!r}")
    return problems


def cited_evidence(case: SafetyCase) -> list[Evidence]:
    """All evidence a case cites, each file once, sorted by place."""
    cited = [evidence for claim in case.claims for evidence in claim.evidence]
    cited += [
        claim.counterexample.evidence for claim in case.claims if claim.counterexample and claim.counterexample.evidence
    ]
    return sorted({(evidence.uri, evidence.sha256): evidence for evidence in cited}.values(), key=lambda each: each.uri)


def schema() -> Json:
    """The JSON Schema of `case.json`; `loomrl/safety/case.schema.json` holds the same."""
    described = SafetyCase.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}


def schema_bytes() -> bytes:
    """The schema as it is written to `case.schema.json`."""
    return canonical_json(schema())


def _evidence_problems(folder: Path, evidence: Evidence) -> list[str]:
    path = (folder / evidence.uri).resolve()
    if not path.is_relative_to(folder.resolve()):
        return [f"{evidence.uri} lies outside the case's folder"]
    try:
        digest = sha256_file(path)
    except ArtifactError:
        return [f"{evidence.uri} is missing"]
    return [] if digest == evidence.sha256 else [f"{evidence.uri} was changed: its SHA-256 is not the cited one"]

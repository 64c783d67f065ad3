"""The signed envelope around a safety case: everything that must not stand in the case itself.

The case is reproducible to the byte. Which run made it, from which commit, when, at what cost, which graph was
exported from the policy and how well it agrees with it, stands here, with the hash of the policy's case before it,
under a signature (see `loomrl.system.security.signing`).
"""

from pathlib import Path

from pydantic import Field, ValidationError

from loomrl.errors import ArtifactError
from loomrl.promotion.attempts import GateAttempt
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.system.files import sha256, sha256_file
from loomrl.system.schema import Document, first_problem
from loomrl.system.security.signing import Envelope, sign_envelope, verify_envelope
from loomrl.types import ParityReport, PolicyManifest, SafetyCase, Verdict

PAYLOAD_TYPE = "application/vnd.loomrl.safety-case+json"
ENVELOPE, CASE, ONNX, MANIFEST, PARITY = "envelope.json", "case.json", "policy.onnx", "manifest.json", "parity.json"
EPISODES, EVALUATION = "episodes.parquet", "evaluation.json"
SHIELD, CERTIFIED = "shield.safetensors", "certified.safetensors"

CASE_TAG = "loomrl.case_sha256"
ENVELOPE_TAG = "loomrl.envelope_sha256"


class PreviousCase(Document):
    """The case that a safety case follows, of the same policy: its version and SHA-256 digests."""

    version: str
    case_sha256: str
    envelope_sha256: str


class RunFacts(Document):
    """What the run knows and the files do not. `created` is ISO 8601, in UTC; `stage_seconds` is what each stage cost.

    `previous` is the case this one follows, None for the first; `attempt` is None in what was signed before attempts
    were counted.
    """

    policy: str
    run_id: str
    created: str  # ISO 8601, UTC
    git_commit: str | None = None
    git_dirty: bool = False
    stage_seconds: dict[str, float] = Field(default_factory=dict)  # stage -> what it cost in this run
    previous: PreviousCase | None = None
    # Which attempt to pass the gate the case is; None in what was signed before attempts were counted.
    attempt: GateAttempt | None = Field(default=None, exclude_if=lambda attempt: attempt is None)


class CaseStatement(RunFacts):
    """What the signature on a safety case covers: the digests of policy, evidence and exported files, and rechecked
    claims."""

    schema_version: int = 2  # 2: with the evaluation that promotion compares by
    case_sha256: str
    episodes_sha256: str
    evaluation_sha256: str
    onnx_sha256: str
    manifest_sha256: str
    policy_digest: str
    snapshot_digest: str
    parity: ParityReport
    rechecked_claims: dict[str, Verdict] = Field(default_factory=dict)  # the gate's local claims, on the graph itself


def build_envelope(folder: Path, facts: RunFacts) -> Envelope:
    """Sign what a folder holds: case, graph, manifest, parity report, evaluation report and its episodes. Nothing is
    written.

    Raises:
        ArtifactError: when a file is missing, or the files do not belong together.
        ConfigError: when there is no usable key to sign with.
    """
    manifest = PolicyManifest.read(folder / MANIFEST)
    parity = ParityReport.read(folder / PARITY)
    statement = CaseStatement(
        **dict(facts),
        case_sha256=sha256_file(folder / CASE),
        episodes_sha256=sha256_file(folder / EPISODES),
        evaluation_sha256=sha256_file(folder / EVALUATION),
        onnx_sha256=sha256_file(folder / ONNX),
        manifest_sha256=sha256_file(folder / MANIFEST),
        policy_digest=manifest.policy_digest,
        snapshot_digest=manifest.snapshot_digest,
        parity=parity,
        rechecked_claims=parity.rechecked_claims,
    )
    _check_together(folder, manifest, statement)
    return sign_envelope(statement.to_bytes(), PAYLOAD_TYPE)


def verify(folder: Path) -> tuple[CaseStatement, SafetyCase]:
    """The signed statement and the case in a folder, once signature and every digest agree.

    Raises:
        ArtifactError: naming the file that is missing, was changed or belongs to another policy.
    """
    envelope = Envelope.read(folder / ENVELOPE)
    statement = _statement(folder, verify_envelope(envelope, PAYLOAD_TYPE))
    for name, signed in (
        (CASE, statement.case_sha256),
        (ONNX, statement.onnx_sha256),
        (MANIFEST, statement.manifest_sha256),
        (PARITY, sha256(statement.parity.to_bytes())),
        (EPISODES, statement.episodes_sha256),
        (EVALUATION, statement.evaluation_sha256),
    ):
        if sha256_file(folder / name) != signed:
            raise ArtifactError(f"{folder / name} is not the file the envelope was signed for; restore or export again")
    manifest = PolicyManifest.read(folder / MANIFEST)
    _check_together(folder, manifest, statement)
    certified_sha256 = None if manifest.certified is None else manifest.certified["sha256"]
    for path, named, what in (
        (folder / SHIELD, manifest.shield_sha256, "the shield"),
        (folder / CERTIFIED, certified_sha256, "the certificate"),
    ):
        if named not in (None, sha256_file(path) if path.is_file() else ""):
            raise ArtifactError(f"{path} is not {what} the manifest names; restore or export again")
    return statement, SafetyCase.read(folder / CASE)


def previous_case(registry: Registry, policy: str) -> PreviousCase | None:
    """The newest case that was registered for a policy: the one a new case follows; None where there is none.

    Raises:
        ServiceError: when the registry cannot be reached.
    """
    signed = [version for version in registry.versions(policy) if ENVELOPE_TAG in version.tags]
    return _as_previous(signed[-1]) if signed else None


def envelope_tags(folder: Path) -> dict[str, str]:
    """The tags that put a version into the chain of cases: the SHA-256 digests of case and envelope.

    Raises:
        ArtifactError: when one of both files is missing.
    """
    return {CASE_TAG: sha256_file(folder / CASE), ENVELOPE_TAG: sha256_file(folder / ENVELOPE)}


def check_chain(registry: Registry, policy: str, statement: CaseStatement) -> None:
    """Check that the case before this one is still the one that was signed; the first case has none before it.

    Raises:
        ArtifactError: when it is gone or another.
        ServiceError: when the registry cannot be reached.
    """
    if statement.previous is None:
        return
    found = registry.get(policy, statement.previous.version)
    if found is None or ENVELOPE_TAG not in found.tags or _as_previous(found) != statement.previous:
        raise ArtifactError(
            f"{policy}: the safety case of run {statement.run_id} follows that of version "
            f"{statement.previous.version}, which is gone or another now: the chain of cases is broken; "
            "restore the registry from a backup"
        )


def _statement(folder: Path, payload: bytes) -> CaseStatement:
    try:
        return CaseStatement.model_validate_json(payload)
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / ENVELOPE}: signed by another version of LoomRL: {first_problem(error)}; register it again"
        ) from error


def _as_previous(version: PolicyVersion) -> PreviousCase:
    return PreviousCase(
        version=version.version, case_sha256=version.tags[CASE_TAG], envelope_sha256=version.tags[ENVELOPE_TAG]
    )


def _check_together(folder: Path, manifest: PolicyManifest, statement: CaseStatement) -> None:
    case = SafetyCase.read(folder / CASE)
    pairs = {
        "the manifest's policy.onnx": (manifest.onnx_sha256, statement.onnx_sha256),
        "the manifest's safety case": (manifest.case_sha256, statement.case_sha256),
        "the case's policy": (case.policy_digest, statement.policy_digest),
        "the case's snapshot": (case.snapshot_digest, statement.snapshot_digest),
        "the manifest's name": (manifest.name, statement.policy),
    }
    if (attempt := statement.attempt) is not None:
        pairs |= {
            "the attempt's policy": (attempt.policy_digest, statement.policy_digest),
            "the attempt's snapshot": (attempt.snapshot_digest, statement.snapshot_digest),
            "the attempt's name": (attempt.policy, statement.policy),
        }
    for what, (found, expected) in pairs.items():
        if found != expected:
            raise ArtifactError(f"{folder}: {what} is {found[:16]}, expected {expected[:16]}; run the stages again")

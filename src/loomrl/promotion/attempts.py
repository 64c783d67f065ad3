"""Attempts to pass the gate, on record: signed, each linked to the one before it, in LoomDB's events.

An attempt is a safety case for a policy under settings that were not examined together before, whether it passed or
not. The same policy under the same settings, on the same evaluation, is the same attempt, with the number it was given
first, for ever: what was refused at its level does not get another one later. Numbers begin anew with each promotion.

The newest one that a host knew is kept in its home, `home()/attempts/POLICY.json`, and a version's is named in a tag:
LoomDB without one of them has lost the end.
"""

from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from loomrl.errors import ArtifactError
from loomrl.safety.config import SafetyConfig
from loomrl.statistics.spending import level
from loomrl.storage.ledger import moves
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import PolicyVersion
from loomrl.storage.run_record import now
from loomrl.system.files import canonical_json, sha256
from loomrl.system.home import inside
from loomrl.system.schema import Document
from loomrl.system.security.signing import Envelope, sign_envelope, verify_envelope
from loomrl.types import SafetyCase

PAYLOAD_TYPE = "application/vnd.loomrl.safety-attempt+json"
KIND = "safety attempt"  # of the event
ATTEMPT_TAG = "loomrl.attempt_sha256"  # of a version: the digest of the attempt that its envelope holds
_WITHOUT_EFFECT = {"num_envs", "waivers"}  # settings that change no verdict of an examination


class GateAttempt(Document):
    """The signed record of one attempt at the gate.

    Digests are SHA-256 in hex digits. `confidence` is that of each claim, over all attempts; `number` is 1 for the
    first attempt since the last promotion, and `num_promotions` counts those of the policy before it. `previous` is the
    digest of the attempt before it, None for the first of all.
    """

    policy: str
    policy_digest: str
    snapshot_digest: str
    evaluation_digest: str | None = None  # None: recorded before evaluations counted
    settings_digest: str  # SHA-256 of the safety settings
    confidence: float  # of each claim, over all attempts
    number: int  # 1 for the first since the last promotion
    num_promotions: int  # of the policy, before it
    run_id: str
    created: str  # ISO 8601, UTC
    previous: str | None  # SHA-256 of the attempt before it, over all promotions

    @property
    def digest(self) -> str:
        """SHA-256 of the attempt in hex digits; the next attempt names it as its predecessor."""
        return sha256(self.to_bytes())

    def to_bytes(self) -> bytes:
        """What is signed, as canonical JSON; without the evaluation where none was recorded."""
        left_out = {"evaluation_digest"} if self.evaluation_digest is None else None
        return canonical_json(self.model_dump(mode="json", exclude=left_out))

    def is_about(self, case: SafetyCase, settings: SafetyConfig) -> bool:
        """Whether this attempt was made with the case's policy, snapshot, evaluation and these settings."""
        own = (self.policy_digest, self.snapshot_digest, self.settings_digest)
        is_on_it = self.evaluation_digest in (None, case.evaluation_digest)
        return is_on_it and own == (case.policy_digest, case.snapshot_digest, settings_digest(settings))

    @property
    def level(self) -> float:
        """The error that each of the attempt's claims may make, between 0 and 1."""
        return level(1.0 - self.confidence, self.number)

    def sentence(self) -> str:
        """Such as "attempt 2 since the last promotion, each claim held to an error of 0.00833"."""
        return f"attempt {self.number} since the last promotion, each claim held to an error of {self.level:.3g}"


def settings_digest(settings: SafetyConfig) -> str:
    """SHA-256, in hex digits, of all settings that a verdict may depend on."""
    return sha256(canonical_json(settings.model_dump(mode="json", exclude=_WITHOUT_EFFECT)))


def record_attempt(
    db: LoomDB,
    policy: str,
    case: SafetyCase,
    settings: SafetyConfig,
    run_id: str,
    versions: Sequence[PolicyVersion] = (),
) -> GateAttempt:
    """The attempt that a case is, recorded in LoomDB where it is a new one; another host that records one too comes
    after it.

    `versions` are those registered of the policy: their attempts must be on record.

    Raises:
        ArtifactError: when a recorded attempt was changed, one is missing, or LoomDB takes none; nothing is recorded
            then.
        ConfigError: when there is no usable key to sign with.
        ServiceError: when LoomDB cannot be reached.
    """
    num_known = -1
    while True:
        known = attempts(db, policy, versions)
        if len(known) == num_known:
            raise ArtifactError(
                f"{policy}: LoomDB takes no attempt after the {num_known} it has: what stands in the place of the next "
                "is none; restore LoomDB from a backup"
            )
        num_known = len(known)
        if (found := find_attempt(known, case, settings)) is not None:
            return found
        num_promotions = sum(move["kind"] == "promotion" for move in moves(db, policy))
        attempt = GateAttempt(
            policy=policy,
            policy_digest=case.policy_digest,
            snapshot_digest=case.snapshot_digest,
            evaluation_digest=case.evaluation_digest,
            settings_digest=settings_digest(settings),
            confidence=settings.confidence,
            number=1 + sum(one.num_promotions == num_promotions for one in known),
            num_promotions=num_promotions,
            run_id=run_id,
            created=now(),
            previous=known[-1].digest if known else None,
        )
        data = {"policy": policy, "envelope": sign_envelope(attempt.to_bytes(), PAYLOAD_TYPE).to_json()}
        if db.add_event(KIND, data, f"{KIND} of {policy} after {attempt.previous}"):
            _remember([*known, attempt])
            return attempt


def find_attempt(known: list[GateAttempt], case: SafetyCase, settings: SafetyConfig) -> GateAttempt | None:
    """The recorded attempt that this case was made in; None where there is none."""
    return next((one for one in known if one.is_about(case, settings)), None)


def attempts(db: LoomDB, policy: str, versions: Sequence[PolicyVersion] = ()) -> list[GateAttempt]:
    """All recorded attempts of a policy, oldest first, among them those of its registered `versions`.

    Raises:
        ArtifactError: when one was changed, or one is missing, between others or at the end.
        ServiceError: when LoomDB cannot be reached.
    """
    known = _remembered(policy)  # before LoomDB is read: what another process adds meanwhile is not missing
    found: list[GateAttempt] = []
    for event in db.events(KIND):
        if event.data.get("policy") != policy:
            continue
        try:
            payload = verify_envelope(Envelope.model_validate(event.data.get("envelope")), PAYLOAD_TYPE)
            attempt = GateAttempt.model_validate_json(payload)
        except ValidationError as error:
            raise ArtifactError(
                f"{policy}: an attempt in LoomDB is none, it was changed: {error}; restore LoomDB from a backup"
            ) from error
        before = found[-1].digest if found else None
        if (attempt.policy, attempt.previous) != (policy, before):
            raise ArtifactError(
                f"{policy}: attempt {attempt.number} of run {attempt.run_id} does not follow the attempt recorded "
                "before it: one is missing or was moved; restore LoomDB from a backup"
            )
        found.append(attempt)
    _require_remembered(policy, known, found)
    _require_registered(policy, versions, found)
    if found and known != found[-1]:
        _remember(found)
    return found


def _newest_known(policy: str) -> Path:
    return inside("attempts", f"{policy}.json")


def _remembered(policy: str) -> GateAttempt | None:
    path = _newest_known(policy)
    return GateAttempt.read(path) if path.exists() else None


def _remember(found: list[GateAttempt]) -> None:
    """Keep the newest, unless another process has kept one that came after it."""
    newest = found[-1]
    path = _newest_known(newest.policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if _remembered(newest.policy) in (None, *found):
            newest.write(path)


def _require_remembered(policy: str, known: GateAttempt | None, found: list[GateAttempt]) -> None:
    if known is not None and known not in found:
        raise ArtifactError(
            f"{policy}: LoomDB lacks attempt {known.number} of run {known.run_id}, which this home knows: the end of "
            "the record was deleted, or this is another database; restore LoomDB from a newer backup, or where another "
            f"one is meant, remove {_newest_known(policy)} to count from what that holds"
        )


def _require_registered(policy: str, versions: Sequence[PolicyVersion], found: list[GateAttempt]) -> None:
    recorded = {attempt.digest for attempt in found}
    lacking = [version for version in versions if version.tags.get(ATTEMPT_TAG, "") not in {"", *recorded}]
    if lacking:
        names = ", ".join(f"version {version.version} (run {version.run_id})" for version in lacking)
        raise ArtifactError(
            f"{policy}: LoomDB lacks the attempts of {names}: the end of the record was deleted, or this is another "
            "database; restore LoomDB from a newer backup, or where another one is meant, delete the tag "
            f"{ATTEMPT_TAG} of these versions in MLflow to count from what that holds"
        )

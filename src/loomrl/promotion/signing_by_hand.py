"""Signing a registered version again: one from before versions were signed, or whose key is no longer trusted."""

import json
import tempfile
from pathlib import Path

from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion import envelope, promote
from loomrl.serving.config import SERVING
from loomrl.storage import ledger
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.model_signature import SIGNATURE, sign
from loomrl.storage.registry import CHAMPION, PREVIOUS, PolicyVersion, Registry
from loomrl.storage.registry.files import SIGNATURE_TAG
from loomrl.storage.registry.statements import (
    AboutOthers,
    ChampionStatement,
    RegisteredStatement,
    ServingStatement,
    if_valid,
    newest_number,
    state_champion,
    state_registered,
    state_serving,
)
from loomrl.storage.run_record import new_run_id, now
from loomrl.system.files import sha256
from loomrl.system.schema import Document

SIGNED_BY = "loomrl.signed_by"  # on a version: who had it signed again, when and why, as JSON
EVENT = "signing by hand"


class SignedByHand(Document):
    """Who vouched for which files, when (ISO 8601, in UTC) and why.

    `digest` is that of policy.onnx and manifest.json, `sums_sha256` that of the list of all files, recorded when the
    version was registered; `key` is the id of the key that signed.
    """

    policy: str
    version: str
    digest: str  # of policy.onnx and manifest.json
    sums_sha256: str  # of the list of all its files, recorded when it was registered
    key: str
    signature_sha256: str
    by: str
    reason: str
    time: str  # ISO 8601, UTC


def sign_by_hand(
    policy: str, reference: str, person: str, reason: str, registry: Registry | None = None, db: LoomDB | None = None
) -> SignedByHand:
    """Sign a version's files with this installation's key, if they are those that were registered.

    What was recorded at its registration must agree: the digest of every file, kept in the registry, and the signed
    envelope of its safety case, where it has one. Who signs, and why, is put on record in LoomDB before the signature
    counts, and beside it in the registry. How the version is served is signed with it, and where it is the champion,
    that it is: a server follows no alias without.

    Raises:
        ConfigError: without a person or a reason, without a usable key, or for a version that does not exist.
        ArtifactError: when a file is not what was registered, or is of a kind that no version holds, or a statement
            that was signed before is about other files; nothing is signed then.
        ServiceError: when the registry or LoomDB cannot be reached, or somebody else moves the policy's aliases.
            Without LoomDB nothing is signed; to sign again does what is left.
    """
    if not person.strip() or not reason.strip():
        raise ConfigError("signing a version needs the name of a person (--by) and why (--reason)")
    registry, db = registry or Registry(), db or LoomDB.open()
    with promote.exclusive(policy), tempfile.TemporaryDirectory(prefix="loomrl-sign-") as temporary:
        version = registry.require(policy, reference)
        _check_not_stated_otherwise(version)
        folder = registry.download(version, Path(temporary) / "files")
        if (folder / envelope.ENVELOPE).is_file():
            envelope.verify(folder)
        key = sign(folder, policy)
        signature = (folder / SIGNATURE).read_text("utf-8")
        signed = SignedByHand(
            policy=policy,
            version=version.version,
            digest=version.digest,
            sums_sha256=version.sums_sha256,
            key=key,
            signature_sha256=sha256(signature.encode()),
            by=person.strip(),
            reason=reason.strip(),
            time=now(),
        )
        db.record_event(EVENT, signed.to_json())
        registry.set_tag(version, SIGNED_BY, signed.to_bytes().decode())
        registry.set_tag(version, SIGNATURE_TAG, signature)
        _state(registry, version, signed, db)
    return signed


def _check_not_stated_otherwise(version: PolicyVersion) -> None:
    """What does not hold for its key is signed again; what holds, and is about other files, shows that these are wrong.

    Raises:
        AboutOthers: when such a statement stands beside the version.
    """
    for kind in (RegisteredStatement, ServingStatement, ChampionStatement):
        try:
            kind.of(version)
        except AboutOthers:
            raise
        except ArtifactError:
            continue


def _state(registry: Registry, version: PolicyVersion, signed: SignedByHand, db: LoomDB) -> None:
    """Sign what stood in tags that nobody had signed: which files it is, the section `serving`, that it is champion."""
    if if_valid(RegisteredStatement, version) is None:
        state_registered(registry, version)
    known = if_valid(ServingStatement, version)
    if known is None and SERVING in version.tags:
        state_serving(registry, version, json.loads(version.tags[SERVING]))
    aliases = registry.aliases(version.policy)
    if aliases.get(CHAMPION) == version.version and if_valid(ChampionStatement, version) is None:
        state_champion(
            registry,
            registry.require(version.policy, version.version),
            number=1 + max(newest_number(registry, version.policy), ledger.newest_number(db, version.policy)),
            kind=EVENT,
            before=None,
            previous=aliases.get(PREVIOUS),
            run_id=f"by-hand-{new_run_id()}",
            reason=signed.reason,
            person=signed.by,
            time=signed.time,
        )

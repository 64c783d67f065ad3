"""What a signature says of a version: which files it is, how it is served, and that it became champion.

Whoever may write to MLflow can set a tag and move an alias, and cannot sign. So all statements are envelopes signed
with this installation's key (`loomrl.system.security.signing`), kept as tags of the version they are about, whose files
they name by digest. They are numbered, for an older one is as well signed as the newest.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from loomrl.errors import ArtifactError
from loomrl.storage.registry.files import STATED, PolicyVersion, is_stated
from loomrl.storage.run_record import now
from loomrl.system.schema import Document
from loomrl.system.security.signing import Envelope, sign_envelope, verify_envelope
from loomrl.types import Json

if TYPE_CHECKING:
    from loomrl.storage.registry.versions import Registry  # which states what it registers

log = logging.getLogger(__name__)


class AboutOthers(ArtifactError):
    """A trusted key signed the statement, about another version or other files than those that it stands beside."""


class Statement(Document):
    """A signed statement about a version and all its files, kept as a tag of that version.

    A subclass says what is stated, and names the tag.
    """

    policy: str
    version: str
    sums_sha256: str  # of the list of all its files' digests
    number: int  # 1 for the first
    TAG: ClassVar[str]  # of the version, which holds the envelope

    @classmethod
    def of(cls, version: PolicyVersion) -> Self | None:
        """What was signed of a version; None where nothing was.

        Raises:
            ArtifactError: when no trusted key signed it.
            AboutOthers: when one did, and it is about another version or other files.
        """
        text = version.tags.get(cls.TAG)
        if text is None:
            return None
        name = f"{version.policy}@{version.version}: its tag {cls.TAG}"
        try:
            payload = verify_envelope(Envelope.model_validate_json(text), _payload_type(cls))
            found = cls.model_validate_json(payload)
        except (ArtifactError, ValidationError) as error:
            raise ArtifactError(f"{name} does not hold: {error}") from error
        if (found.policy, found.version, found.sums_sha256) != (version.policy, version.version, version.sums_sha256):
            raise AboutOthers(
                f"{name} is about {found.policy}@{found.version}, or about other files; restore the files or MLflow "
                "from a backup"
            )
        return found

    def sign(self, registry: "Registry", version: PolicyVersion) -> None:
        """Sign it and set it as a tag of the version that it is about, in place of the former one of its kind.

        Raises:
            ConfigError: when this installation has no key to sign with.
            ServiceError: when MLflow cannot be reached or fails; the former statement stays.
        """
        text = sign_envelope(self.to_bytes(), _payload_type(type(self))).to_bytes().decode()
        registry.set_tag(version, self.TAG, text)


class RegisteredStatement(Statement):
    """That these files were registered under this number; the signature of the files themselves names the policy
    alone."""

    created: str  # ISO 8601, UTC
    TAG: ClassVar[str] = STATED


class ServingStatement(Statement):
    """How a version is served: the section `serving` of its config."""

    serving: Json
    created: str  # ISO 8601, UTC
    TAG: ClassVar[str] = "loomrl.serving_statement"


class ChampionStatement(Statement):
    """That a version became champion: by which rules, and whose approval. Numbered over all moves of the alias."""

    kind: str  # "promotion", "rollback", "signing by hand"
    before: str | None  # the champion it replaced
    run_id: str  # the run that decided, or the id of a command by hand
    reason: str
    person: str | None
    time: str  # ISO 8601, UTC
    previous: str | None = None  # the version to fall back to
    serving: Json | None = None  # as it was signed then
    TAG: ClassVar[str] = "loomrl.champion_statement"


T = TypeVar("T", bound=Statement)
_MAX_REASON = 4_000  # MLflow takes 100,000 characters, and the envelope makes more of them


def state_registered(registry: "Registry", version: PolicyVersion) -> None:
    """Sign that a version is the files that it names now; whoever calls this has registered or verified them.

    Raises:
        ConfigError: when this installation has no key to sign with.
        ServiceError: when MLflow cannot be reached or fails; nothing is stated then.
    """
    RegisteredStatement(**_about(version), number=1, created=now()).sign(registry, version)


def check_registered(version: PolicyVersion, folder: Path) -> None:
    """Refuse files that were registered under another number of the same policy. `folder` holds them, verified.

    Files from before there were such statements pass, with a warning; those that were registered with one say so, under
    their signature, so deleting it is no way to put them under another number.

    Raises:
        ArtifactError: when no signed statement says that the version is these files, or one says otherwise.
    """
    if RegisteredStatement.of(version) is not None:
        return
    name = f"{version.policy}@{version.version}"
    if is_stated(folder):
        raise ArtifactError(
            f"{name}: no signed statement says that these files were registered under this number; restore MLflow from "
            f"a backup; `loomrl policy sign {name} --by NAME --reason TEXT` vouches for the version as it is"
        )
    log.warning(
        "%s: from before statements said which files a number means; whoever writes to MLflow could have put other "
        "files there: `loomrl policy sign %s --by NAME --reason TEXT` vouches for these", name, name
    )  # fmt: skip


def state_serving(registry: "Registry", version: PolicyVersion, serving: Json) -> None:
    """Sign how a version is served, the section `serving` of its config, unless that is what was signed last.

    Raises:
        ConfigError: when this installation has no key to sign with.
        ServiceError: when MLflow cannot be reached or fails; nothing is stated then.
    """
    known = if_valid(ServingStatement, version)
    if known is None or known.serving != serving:
        ServingStatement(**_about(version), number=1 + _number(known), serving=serving, created=now()).sign(
            registry, version
        )


def state_champion(registry: "Registry", version: PolicyVersion, number: int, **move: Any) -> None:
    """Sign that a version becomes champion, as statement `number`; `move` holds the other fields of
    `ChampionStatement`.

    `reason` is cut to 4,000 characters. The alias itself is not moved.

    Raises:
        ConfigError: when this installation has no key to sign with.
        ServiceError: when MLflow cannot be reached or fails; nothing is stated then.
    """
    served = if_valid(ServingStatement, version)
    serving = None if served is None else served.serving
    move["reason"] = move["reason"][:_MAX_REASON]
    ChampionStatement(**_about(version), number=number, serving=serving, **move).sign(registry, version)


def was_champion(registry: "Registry", version: PolicyVersion) -> bool:
    """Whether a valid statement says that a version was champion: its own, or that of the champion that replaced it.

    True for every version where the policy has no valid statement about any champion.

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    found = [if_valid(ChampionStatement, one) for one in registry.versions(version.policy)]
    known = [one for one in found if one is not None]
    return not known or any(version.version in (one.version, one.before) for one in known)


def newest_number(registry: "Registry", policy: str) -> int:
    """The highest number of a policy's valid champion statements; 0 where there are none.

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    return max((_number(if_valid(ChampionStatement, one)) for one in registry.versions(policy)), default=0)


def _about(version: PolicyVersion) -> dict[str, str]:
    return {"policy": version.policy, "version": version.version, "sums_sha256": version.sums_sha256}


def _payload_type(kind: type[Statement]) -> str:
    return f"application/vnd.{kind.TAG}+json"


def if_valid(kind: type[T], version: PolicyVersion) -> T | None:
    """The statement of this kind about a version; None where there is none, and where it does not hold: never raises
    `ArtifactError`."""
    try:
        return kind.of(version)
    except ArtifactError:
        return None


def _number(statement: Statement | None) -> int:
    return 0 if statement is None else statement.number

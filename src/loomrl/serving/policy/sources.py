"""Where a server finds policies: the registry's aliases, pinned versions, or plain folders.

Whatever is signed must verify: by a trusted key, for exactly these files, as this policy's. What the registry holds
must be signed, unless the server was told otherwise; a folder need not be, unless the server was told that it must.
So must be how a version is served, and that it was promoted: an alias or a tag that somebody wrote in MLflow moves
nothing.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from loomrl.errors import ArtifactError, ServiceError
from loomrl.serving.config import SERVING, ServingConfig
from loomrl.serving.policy.aliases import ChampionStatements, signed_section
from loomrl.serving.policy.last_verified import LastVerified, VerifiedVersion, path_of
from loomrl.serving.policy.model import MANIFEST, ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.storage.model_signature import SIGNATURE, is_signed, verify
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry
from loomrl.storage.registry.files import PolicyVersion
from loomrl.storage.registry.statements import ServingStatement, check_registered
from loomrl.system.files import canonical_json
from loomrl.system.home import home, inside
from loomrl.types import PolicyManifest

log = logging.getLogger(__name__)
ROLES = (CHAMPION, CHALLENGER, PREVIOUS)


class PolicySource(Protocol):
    """Says which version has which role, and brings a version's files. `roles`, `look_up` and `fetch` may block, and
    may raise LoomRLError; where nothing else is said, the other methods do neither.
    """

    def roles(self) -> Mapping[str, str]:
        """Role (`champion`, `challenger`, `previous`) -> version, of those roles that a version has. May block.

        Raises:
            LoomRLError: when they cannot be looked up.
        """
        ...

    def look_up(self, version: str) -> None:  # noqa: ARG002 - a source's signature
        """Ask whether there is a version, before its files are fetched; what need not be asked is left to `fetch`. May
        block.

        Raises:
            ServiceError: when nobody can say.
            LoomRLError: any other, when there is no such version.
        """
        return

    def fetch(self, version: str) -> Path:
        """The folder that holds a version's verified files, brought here where they are not yet. May block.

        Raises:
            LoomRLError: when they cannot be had, or are not what was signed.
        """
        ...

    def settings(self, version: str) -> ServingConfig:
        """How a version is served, once it was fetched; the defaults where nothing is known."""
        ...

    def not_followed(self) -> Mapping[str, str]:
        """Versions that roles were asked for and not given, as of the last look at them, and why."""
        return {}

    def last_verified(self) -> LastVerified | None:
        """Roles that may be taken where `roles` does not answer, verified again by `fetch`; None where none were
        kept.
        """
        return None

    def keep_verified(
        self,
        roles: Mapping[str, ServedPolicy],  # noqa: ARG002 - a source's signature
        versions: Iterable[ServedPolicy],  # noqa: ARG002
        awaited: Mapping[str, str],  # noqa: ARG002
    ) -> None:
        """Keep the roles that loaded versions have, for the next start; `versions` are all that are loaded.

        `awaited` are the roles (role -> version) of versions that are not loaded yet: those that were kept before stay.

        Raises:
            LoomRLError: when they cannot be written.
        """
        return

    def known(self) -> tuple[str, PolicyManifest] | None:
        """The champion's version and manifest, as far as they are known without loading it: which actions there are.
        None where they are not known. Files of this host are read at most, and nothing is raised.
        """
        return None


class RegistrySource(PolicySource):
    """Roles are the registry's aliases, except those pinned; versions are downloaded and verified."""

    def __init__(
        self,
        policy: str,
        tracking_uri: str | None = None,
        pinned: Mapping[str, str] | None = None,
        require_signature: bool = True,
    ) -> None:
        self.policy = policy
        self._registry = Registry(tracking_uri)
        self._pinned = dict(pinned or {})
        self._require_signature = require_signature
        self._settings: dict[str, ServingConfig] = {}  # by version, as they stood when that was fetched
        self._described: dict[str, PolicyVersion] = {}  # by version, as the registry described those fetched
        self._kept = self._read_kept()
        self._answers = True  # whether the registry did when it was last asked for roles
        self._statements = ChampionStatements(policy, self._kept)

    def roles(self) -> Mapping[str, str]:
        """Role -> version. With any role pinned the aliases are not looked at.

        Raises:
            ServiceError: when the registry cannot be reached, or no longer knows the champion that it named last.
        """
        if self._pinned:
            return self._pinned
        self._answers = False  # until it has
        aliases = self._registry.aliases(self.policy)
        self._require_known_champion(aliases)
        self._answers = True
        named = {role: aliases[role] for role in ROLES if role in aliases}
        return self._statements.followed(named, self._registry) if self._require_signature else named

    def _require_known_champion(self, aliases: Mapping[str, str]) -> None:
        """A registry that was emptied, or stands in the place of the real one, is no registry that took the champion
        back: that leaves the version."""
        if self._kept is None or CHAMPION in aliases:
            return
        version = self._kept.roles[CHAMPION]
        if self._registry.get(self.policy, version) is None:
            raise ServiceError(
                f"the registry does not know {self.policy}@{version}, the champion that it named last, verified here "
                f"at {self._kept.verified}: it is another one, or was emptied; restore it (`loomrl backup` keeps "
                f"copies), or remove {path_of(self.policy)} to begin anew"
            )

    def not_followed(self) -> Mapping[str, str]:
        """The versions that an alias names and no signed statement, as of the last look at roles, and why each is not
        followed.
        """
        return self._statements.refused

    def look_up(self, version: str) -> None:
        """Ask the registry whether it has a version.

        Raises:
            ConfigError: when there is no such version.
            ServiceError: when the registry cannot be reached, and this home has not verified the version.
        """
        self._describe(version)

    def fetch(self, version: str) -> Path:
        """The version's folder; digests, signature, and that these files were registered as this version, verified.

        Raises:
            ArtifactError: when any of that does not hold.
            ConfigError: when there is no such version, or how it is served cannot be read.
            ServiceError: when the registry cannot be reached, and this home has not verified the version or lacks its
                files.
        """
        found = self._describe(version)
        if self._require_signature:
            self._statements.check_files(found)
        self._settings[version] = self._served_as(found)
        folder = inside("versions", self.policy, found.version)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(home() / "versions" / f".{self.policy}-{found.version}.lock"):  # the home's servers share it
            self._registry.download(found, folder)
        check_signature(folder, self.policy, self._require_signature, found.version)
        if self._require_signature:
            check_registered(found, folder)
        self._described[version] = found
        return folder

    def _describe(self, version: str) -> PolicyVersion:
        """As the registry describes it; as it did when it was last verified here, where the registry is away."""
        kept = None if self._kept is None else self._kept.versions.get(version)
        if kept is not None and not self._answers:
            return kept.described
        try:
            return self._registry.require(self.policy, version)
        except ServiceError:
            if kept is None:
                raise
            return kept.described

    def _served_as(self, version: PolicyVersion) -> ServingConfig:
        kept = None if self._kept is None else self._kept.versions.get(version.version)
        section = signed_section(version, None if kept is None else kept.described)
        name = f"{self.policy}@{version.version}"
        if section is not None:
            return ServingConfig.read_tag(canonical_json(section), name, ServingStatement.TAG)
        if SERVING not in version.tags:
            return ServingConfig()
        if not self._require_signature:
            return ServingConfig.read_tag(version.tags[SERVING], name)
        log.warning(
            "%s is served by the defaults: its tag %s is not signed; run the life cycle again, or "
            "`loomrl policy sign %s --by NAME --reason TEXT`, which signs it as well", name, SERVING, name
        )  # fmt: skip
        return ServingConfig()

    def settings(self, version: str) -> ServingConfig:
        """The serving section of a version's config, as it was when the version was fetched; defaults for others."""
        return self._settings.get(version, ServingConfig())

    def last_verified(self) -> LastVerified | None:
        """The roles of a server of this home, as the registry named them last; None where none were kept.

        Where another champion came after it, by what LoomDB knows, that one alone, if this home has verified it before;
        None otherwise: a version that was rolled back does not come back because the registry is away.
        """
        champion = self._statements.last_champion()
        if self._kept is None or champion in (None, self._kept.roles[CHAMPION]):
            return self._kept
        known = self._kept.versions.get(str(champion))
        if known is None:
            log.error(
                "%s: %s was champion when the registry answered last, and LoomDB says that it is %s now, which this "
                "home has not verified: no version is taken until the registry answers",
                self.policy, self._kept.roles[CHAMPION], champion,
            )  # fmt: skip
            return None
        try:
            manifest = PolicyManifest.read(Path(known.folder) / MANIFEST)
        except ArtifactError as error:
            log.error("%s@%s, champion by what LoomDB knows, cannot be used: %s", self.policy, champion, error)
            return None
        return self._kept.model_copy(update={"roles": {CHAMPION: str(champion)}, "manifest": manifest})

    def keep_verified(
        self, roles: Mapping[str, ServedPolicy], versions: Iterable[ServedPolicy], awaited: Mapping[str, str]
    ) -> None:
        """Write the roles for the next start, where anything changed; nothing while roles are pinned, or without a
        champion.

        Raises:
            ArtifactError: when the file cannot be written.
        """
        known = {one.version: one for one in versions if one.version in self._described}
        champion = roles.get(CHAMPION)
        if self._pinned or champion is None or champion.version not in known:
            return
        kept = {} if self._kept is None else self._kept.versions
        stays = {role: version for role, version in awaited.items() if version in kept}
        found = LastVerified(
            policy=self.policy,
            roles=stays | {role: one.version for role, one in roles.items() if one.version in known},
            versions={version: kept[version] for version in stays.values()}
            | {
                version: VerifiedVersion(described=self._described[version], folder=str(one.folder))
                for version, one in known.items()
            },
            manifest=champion.manifest,
            verified=datetime.now(UTC).isoformat(timespec="seconds"),
            number=self._statements.number_of(self._described[champion.version]),
        )
        if not found.is_like(self._kept):
            found.write(path_of(self.policy))
            self._kept = found

    def known(self) -> tuple[str, PolicyManifest] | None:
        """Version and manifest of the champion that was verified last; None where none was kept."""
        return None if self._kept is None else (self._kept.roles[CHAMPION], self._kept.manifest)

    def _read_kept(self) -> LastVerified | None:
        """What cannot be read is told in the log, and written anew when the registry answers."""
        path = path_of(self.policy)
        try:
            return LastVerified.read(path) if path.is_file() else None
        except ArtifactError as error:
            log.error("the last verified roles cannot be used: %s", error)
            return None


class FolderSource(PolicySource):
    """Export folders by role, without a registry: for a quick look, and for benchmarks."""

    def __init__(self, policy: str, folders: Mapping[str, Path], require_signature: bool = False) -> None:
        self.policy = policy
        self._folders = dict(folders)
        self._require_signature = require_signature

    def roles(self) -> Mapping[str, str]:
        """Role -> folder, as text: the folder is the version."""
        return {role: str(folder) for role, folder in self._folders.items()}

    def fetch(self, version: str) -> Path:
        """The folder itself, its signature verified where there is one.

        Raises:
            ArtifactError: when there is no such folder, or its signature does not hold, or is missing and required.
        """
        folder = Path(version)
        if not folder.is_dir():
            raise ArtifactError(f"no policy folder {folder}; name a folder that `loomrl run` exported")
        check_signature(folder, self.policy, self._require_signature)
        return folder

    def settings(self, version: str) -> ServingConfig:  # noqa: ARG002 - a source's signature
        """The defaults: a folder has no config beside it."""
        return ServingConfig()

    def known(self) -> tuple[str, PolicyManifest] | None:
        """The champion's folder and its manifest, also where its graph cannot be loaded; None where that cannot be
        read.
        """
        try:
            folder = self._folders[CHAMPION]
            return str(folder), PolicyManifest.read(folder / MANIFEST)
        except (KeyError, ArtifactError):
            return None


def source_of(settings: ServerSettings) -> PolicySource:
    """The source of policies that a server's settings name: folders, or the registry with the pinned versions."""
    required = settings.require_signature
    if settings.folders:
        return FolderSource(settings.policy, settings.folders, require_signature=required is True)
    pinned = {CHAMPION: settings.champion, CHALLENGER: settings.challenger}
    versions = {role: version for role, version in pinned.items() if version is not None}
    return RegistrySource(settings.policy, settings.tracking_uri, versions, require_signature=required is not False)


def check_signature(folder: Path, policy: str, required: bool, version: str | None = None) -> None:
    """Refuse a folder whose signature does not hold, or that has none where one is required.

    `version` is the registered one whose files these are.

    Raises:
        ArtifactError: saying what is wrong.
    """
    if is_signed(folder):
        verify(folder, policy)
    elif required:
        fix = (
            "register the policy"
            if version is None
            else f"`loomrl policy sign {policy}@{version} --by NAME --reason TEXT`"
        )
        raise ArtifactError(
            f"{folder} has no {SIGNATURE}, and this server takes signed versions only; {fix}, or serve with "
            "--no-require-signature"
        )

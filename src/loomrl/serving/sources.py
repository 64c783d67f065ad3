"""Where a server finds policies: the registry's aliases, pinned versions, or plain folders.

Whatever is signed must verify: by a trusted key, for exactly these files, as this policy's. What the registry holds
must be signed, unless the server was told otherwise; a folder need not be, unless the server was told that it must.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from loomrl.errors import ArtifactError
from loomrl.home import home
from loomrl.model_signature import SIGNATURE, is_signed, verify
from loomrl.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry
from loomrl.serving.config import SERVING, ServingConfig

ROLES = (CHAMPION, CHALLENGER, PREVIOUS)


class PolicySource(Protocol):
    """Says which version has which role, and brings a version's files. Both may block; both may raise LoomRLError."""

    def roles(self) -> Mapping[str, str]: ...

    def fetch(self, version: str) -> Path: ...

    def settings(self, version: str) -> ServingConfig: ...


class RegistrySource:
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

    def roles(self) -> Mapping[str, str]:
        """Role -> version. With any role pinned the aliases are not looked at."""
        if self._pinned:
            return self._pinned
        aliases = self._registry.aliases(self.policy)
        return {role: aliases[role] for role in ROLES if role in aliases}

    def fetch(self, version: str) -> Path:
        """The version's folder, digests and signature verified."""
        found = self._registry.require(self.policy, version)
        if SERVING in found.tags:
            self._settings[version] = ServingConfig.read_tag(found.tags[SERVING], f"{self.policy}@{version}")
        folder = home() / "versions" / self.policy / found.version
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(home() / "versions" / f".{self.policy}-{found.version}.lock"):  # the home's servers share it
            self._registry.download(found, folder)
        check_signature(folder, self.policy, self._require_signature)
        return folder

    def settings(self, version: str) -> ServingConfig:
        """What the version's config says of serving."""
        return self._settings.get(version, ServingConfig())


class FolderSource:
    """Export folders by role, without a registry: for a quick look, and for benchmarks."""

    def __init__(self, policy: str, folders: Mapping[str, Path], require_signature: bool = False) -> None:
        self.policy = policy
        self._folders = dict(folders)
        self._require_signature = require_signature

    def roles(self) -> Mapping[str, str]:
        """Role -> folder, as text: the folder is the version."""
        return {role: str(folder) for role, folder in self._folders.items()}

    def fetch(self, version: str) -> Path:
        """The folder itself, its signature verified where there is one."""
        folder = Path(version)
        if not folder.is_dir():
            raise ArtifactError(f"no policy folder {folder}; name a folder that `loomrl run` exported")
        check_signature(folder, self.policy, self._require_signature)
        return folder

    def settings(self, version: str) -> ServingConfig:
        """The defaults: a folder has no config beside it."""
        return ServingConfig()


def check_signature(folder: Path, policy: str, required: bool) -> None:
    """Refuse a folder whose signature does not hold, or that has none where one is required.

    Raises:
        ArtifactError: saying what is wrong.
    """
    if is_signed(folder):
        verify(folder, policy)
    elif required:
        raise ArtifactError(
            f"{folder} has no {SIGNATURE}, and this server takes signed versions only; register the policy again, or "
            "serve with --no-require-signature what was registered before versions were signed"
        )

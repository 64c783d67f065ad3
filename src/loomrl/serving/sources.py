"""Where a server finds policies: the registry's aliases, pinned versions, or plain folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from loomrl.errors import ArtifactError
from loomrl.home import home
from loomrl.registry import CHALLENGER, CHAMPION, Registry

ROLES = (CHAMPION, CHALLENGER)


class PolicySource(Protocol):
    """Says which version has which role, and brings a version's files. Both may block; both may raise LoomRLError."""

    def roles(self) -> Mapping[str, str]: ...

    def fetch(self, version: str) -> Path: ...


class RegistrySource:
    """Roles are the registry's aliases, except those pinned; versions are downloaded and verified."""

    def __init__(self, policy: str, tracking_uri: str | None = None, pinned: Mapping[str, str] | None = None) -> None:
        self.policy = policy
        self._registry = Registry(tracking_uri)
        self._pinned = dict(pinned or {})

    def roles(self) -> Mapping[str, str]:
        """Role -> version. With any role pinned the aliases are not looked at."""
        if self._pinned:
            return self._pinned
        aliases = self._registry.aliases(self.policy)
        return {role: aliases[role] for role in ROLES if role in aliases}

    def fetch(self, version: str) -> Path:
        """The version's folder, digests verified."""
        found = self._registry.require(self.policy, version)
        return self._registry.download(found, home() / "versions" / self.policy / found.version)


class FolderSource:
    """Export folders by role, without a registry: for a quick look, and for benchmarks."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)

    def roles(self) -> Mapping[str, str]:
        """Role -> folder, as text: the folder is the version."""
        return {role: str(folder) for role, folder in self._folders.items()}

    def fetch(self, version: str) -> Path:
        """The folder itself."""
        folder = Path(version)
        if not folder.is_dir():
            raise ArtifactError(f"no policy folder {folder}; name a folder that `loomrl run` exported")
        return folder

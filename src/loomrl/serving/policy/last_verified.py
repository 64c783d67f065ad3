"""Which versions had which roles when their files were last verified here: what a server starts with where the
registry cannot be reached.

`home()/roles/POLICY.json`, written when a champion is in service that the registry named. It holds all that is needed
to verify the files again: nothing is taken into service that is not what the registry had named, and signed.
"""

from pathlib import Path

from loomrl.storage.registry.files import PolicyVersion
from loomrl.system.home import inside
from loomrl.system.schema import Document
from loomrl.types import PolicyManifest


class VerifiedVersion(Document):
    """A version as the registry described it, and where its verified files lie on this host."""

    described: PolicyVersion
    folder: str


class LastVerified(Document):
    """Roles as the registry named them, and the versions that were in service then."""

    policy: str
    roles: dict[str, str]  # role -> version
    versions: dict[str, VerifiedVersion]
    manifest: PolicyManifest  # of the champion: its action space is known without its files
    verified: str  # ISO 8601, UTC, by this host's clock
    number: int = 0  # of the newest signed statement about the champion that is kept; 0: from before there were any

    def is_like(self, other: "LastVerified | None") -> bool:
        """Whether it differs from the other in nothing but the time; False for None."""
        return other is not None and other.model_copy(update={"verified": self.verified}) == self


def path_of(policy: str) -> Path:
    """The file that keeps a policy's last verified roles, in `LOOMRL_HOME/roles`."""
    return inside("roles", f"{policy}.json")

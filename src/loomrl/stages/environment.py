"""config -> immutable snapshot: spec, source archive, dependency versions, dynamics fingerprint."""

from loomrl.config import PolicyConfig
from loomrl.environment.snapshot import take_snapshot
from loomrl.stages import Folders

INPUTS: tuple[str, ...] = ()


def run(config: PolicyConfig, folders: Folders) -> None:
    """Snapshot the environment the config names."""
    take_snapshot(config.environment, folders.project, folders["environment"])

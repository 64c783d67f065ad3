"""config -> immutable snapshot: spec, source archive, dependency versions, dynamics fingerprint."""

from loomrl.environment.make import settle_backend
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS: tuple[str, ...] = ()


def run(config: PolicyConfig, folders: Folders) -> None:
    """Snapshot the environment the config names, and settle what steps it in the stages after this one."""
    take_snapshot(config.environment, folders.project, folders["environment"])
    settle_backend(folders["environment"], config.environment.backend, config.environment.timeout_seconds)

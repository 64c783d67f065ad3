"""config -> immutable snapshot: spec, source archive, dependency versions, dynamics fingerprint."""

from loomrl.environment.make import settle_backend
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS: tuple[str, ...] = ()


def run(config: PolicyConfig, folders: Folders) -> None:
    """Snapshot the environment the config names, and settle what steps it in the stages after this one.

    Raises:
        ConfigError: when the environment is unknown or cannot be imported, does not run from its archive alone, or not
            in the back-end that the config names.
        EnvironmentFault: when it breaks Gymnasium's API, or an episode depends on more than its seed and actions.
    """
    take_snapshot(config.environment, folders.project, folders["environment"])
    settle_backend(folders["environment"], config.environment.backend, config.environment.timeout_seconds)

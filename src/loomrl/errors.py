"""The errors LoomRL raises, each with the exit code a command ends with.

0 done, 1 refused by a gate, 2 wrong usage or config, 3 a dependency, service or artifact failed.
"""

from typing import ClassVar


class LoomRLError(Exception):
    """Base of all errors that name a thing, a place and a fix."""

    exit_code: ClassVar[int] = 3
    run_id: str | None = None  # the life-cycle run it ended, once that has recorded it


class GateRefused(LoomRLError):
    """A gate examined valid evidence and refused."""

    exit_code = 1


class ConfigError(LoomRLError):
    """A config, argument or combination of them is wrong."""

    exit_code = 2


class EnvironmentFault(LoomRLError):
    """An environment broke the Gymnasium API or produced a value that is not finite."""


class ArtifactError(LoomRLError):
    """A file is missing, corrupt, tampered with or cannot be written."""


class ServiceError(LoomRLError):
    """MLflow, Prefect, a database or a policy server could not be reached or failed."""


BY_EXIT_CODE: dict[int, type[LoomRLError]] = {
    1: GateRefused,
    2: ConfigError,
    3: LoomRLError,
}

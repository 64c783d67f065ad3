"""The errors LoomRL raises, each with the exit code a command ends with.

0 done, 1 refused by a gate, 2 wrong usage or config, 3 a dependency, service or artifact failed.
"""

from typing import ClassVar


class LoomRLError(Exception):
    """Base of LoomRL's errors. A message says what failed, where, and how to mend it.

    `exit_code` is what a command ends with that such an error ends.
    """

    exit_code: ClassVar[int] = 3
    run_id: str | None = None  # the life-cycle run it ended, once that has recorded it


class GateRefused(LoomRLError):
    """A gate, such as that of safety, examined valid evidence and refused to let the policy go on."""

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

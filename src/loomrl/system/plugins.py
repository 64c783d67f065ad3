"""What is installed, and what of it plugs into LoomRL: entry points of the groups that it reads."""

from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from loomrl.errors import ConfigError

ALGORITHMS, CHECKS = "loomrl.algorithms", "loomrl.safety_checks"
DOMAINS, ENVIRONMENTS = "loomrl.domains", "loomrl.environments"


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def plugin_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, such as `loomrl.algorithms`, that installed packages have, sorted by name."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def place_of(point: EntryPoint) -> str:
    """What messages call an entry point: `entry point GROUP: NAME = MODULE`."""
    return f"entry point {point.group}: {point.name} = {point.value}"


def load_plugin(point: EntryPoint) -> Any:
    """The object that an entry point names; its module is imported.

    Raises:
        ConfigError: when it cannot be loaded, with the cause.
    """
    try:
        return point.load()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{place_of(point)} cannot be loaded: {cause}; repair or uninstall that package") from error

"""Which snapshots stay valid under other releases of what an environment leans on: those whose dynamics are equal.

A patch release may change the dynamics, or leave them to the bit. That is not believed but tried: the recorded seeds
and actions are played again under it. Any other release, and what came or went, makes another environment.
"""

from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from loomrl.types import EnvironmentSnapshot

_OURS = "loomrl"  # no environment's dynamics rest on its release: what of it an environment runs is in the rollouts


def patched(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str] | None:
    """A phrase such as "numpy 2.1.3 for 2.1.2" for each dependency (name -> version) that has another patch release.

    Empty where all are equal; None where more than patch releases differs. Any release of LoomRL's own counts as one.
    """
    if recorded.keys() != current.keys():
        return None
    others = [name for name in sorted(recorded) if recorded[name] != current[name]]
    if not all(name == _OURS or _is_patch(recorded[name], current[name]) for name in others):
        return None
    return [f"{name} {current[name]} for {recorded[name]}" for name in others]


def same_environment(first: EnvironmentSnapshot, second: EnvironmentSnapshot) -> str | None:
    """Why two snapshots are of one environment: all is equal but patch releases, and so are the recorded dynamics.

    The second's seeds and actions are the first's, played under the other releases. None where they are not one, and
    where no release differs, so that there is nothing to explain.
    """
    alike = (first.spec, first.source_digest, first.dynamics) == (second.spec, second.source_digest, second.dynamics)
    releases = patched(first.dependencies, second.dependencies)
    if not alike or not releases:
        return None
    return kept_under(releases, second)


def kept_under(releases: list[str], snapshot: EnvironmentSnapshot) -> str:
    """A sentence that says that all recorded steps of a snapshot are equal under `releases`, phrases of `patched`."""
    dynamics = snapshot.dynamics
    return (
        f"{', '.join(releases)}: all {dynamics.num_steps} recorded steps of {dynamics.num_episodes} episodes are equal "
        "to the bit"
    )


def _is_patch(before: str, after: str) -> bool:
    """3.11.4 and 3.11.9 are one minor release; 1.0 and 1.1 are not."""
    try:
        first, second = Version(before), Version(after)
    except InvalidVersion:
        return False
    return (first.epoch, first.major, first.minor) == (second.epoch, second.major, second.minor)

"""Which snapshots stay valid under other releases of what an environment leans on, and on other machines: those whose
dynamics are equal.

A patch release may change the dynamics, or leave them to the bit, and so may a processor of another family. That is not
believed but tried: the recorded seeds and actions are played again under it. Any other release, and what came or went,
makes another environment.
"""

from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from loomrl.environment.sources.installed import edited_digest
from loomrl.types import DynamicsFingerprint, EnvironmentSnapshot, EnvironmentSpec

_ELSEWHERE = "the arithmetic of another machine"
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
    """Why two snapshots are of one environment: all is equal but patch releases and the machine's arithmetic, and so
    are the recorded rollouts, to the bit.

    The second's seeds and actions are the first's, played under the other releases and arithmetic. None where they are
    not one, and where neither differs, so that there is nothing to explain.
    """
    elsewhere = [] if first.dynamics.arithmetic == second.dynamics.arithmetic else [_ELSEWHERE]
    releases = patched(first.dependencies, second.dependencies)
    if releases is None or _wherever_it_runs(first) != _wherever_it_runs(second):
        return None
    others = [*releases, *elsewhere]
    return kept_under(others, second) if others else None


def _wherever_it_runs(snapshot: EnvironmentSnapshot) -> tuple[EnvironmentSpec, str, DynamicsFingerprint]:
    """What one environment has in common wherever it runs: no machine's arithmetic, and no release."""
    return snapshot.spec, snapshot.source_digest, snapshot.dynamics.model_copy(update={"arithmetic": ""})


def kept_under(others: list[str], snapshot: EnvironmentSnapshot) -> str:
    """A sentence that says that all recorded steps of a snapshot are equal under `others`, such as phrases of
    `patched`."""
    dynamics = snapshot.dynamics
    return (
        f"{', '.join(others)}: all {dynamics.num_steps} recorded steps of {dynamics.num_episodes} episodes are equal "
        "to the bit"
    )


def _is_patch(before: str, after: str) -> bool:
    """3.11.4 and 3.11.9 are one minor release; 1.0 and 1.1 are not, and an edit is no release."""
    if edited_digest(before) != edited_digest(after):
        return False
    try:
        first, second = Version(before), Version(after)
    except InvalidVersion:
        return False
    return (first.epoch, first.major, first.minor) == (second.epoch, second.major, second.minor)

"""Proof that an environment repeats itself: from its archive alone, and in any order of its episodes."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from loomrl.environment.construct import construct
from loomrl.environment.resolve import Definition
from loomrl.environment.snapshots.fingerprint import (
    Rollouts,
    exact_digest,
    first_difference,
    replay_rollouts,
    select_episode,
)
from loomrl.environment.sources.importer import public_names
from loomrl.environment.sources.source import run_archive
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.system.files import sha256


def prove_repeatable(definition: Definition, archive: bytes, recorded: Rollouts) -> None:
    """Replay recorded rollouts from the archived source, the last episode first; all must be equal to the bit.

    Evaluation spreads episodes over environments and replays single ones, so what came before must not matter.

    Raises:
        ConfigError: when the archive does not run on its own, or not as the code it was taken of.
        EnvironmentFault: when an episode depends on more than its seed and its actions; names episode and cause.
    """
    order = _other_order(len(recorded["length"]))
    try:
        source = run_archive(definition.source.entry_point, archive, sha256(archive), definition.source.roots)
        replayed = _replay(replace(definition, source=source), recorded, order)
    except Exception as error:  # whatever the user's code raises where something is missing
        _replay(definition, recorded, order)  # raises for itself where the archive is not to blame
        raise ConfigError(
            f"environment {definition.name!r}: its source archive does not run on its own: {public_names(error)}; "
            f"{_archived(definition)}"
        ) from error
    differing = _difference(recorded, replayed)
    if differing is not None:
        _explain(definition, recorded, order, differing)


def _explain(definition: Definition, recorded: Rollouts, order: list[int], differing: str) -> None:
    """Find the cause by playing the code at hand: in the recorded order, then in the other one."""
    if _difference(recorded, _replay(definition, recorded, sorted(set(order)))) is not None:
        raise EnvironmentFault(
            f"environment {definition.name!r}: two runs with equal seeds and actions differ; draw every random number "
            "from `self.np_random`, which `super().reset(seed=seed)` seeds, and keep no state outside the instance "
            f"({differing})"
        )
    if _difference(recorded, _replay(definition, recorded, order)) is not None:
        raise EnvironmentFault(
            f"environment {definition.name!r}: what an episode does depends on the episodes played before it; "
            f"keep no state across resets: set every part of it in `reset` ({differing})"
        )
    raise ConfigError(
        f"environment {definition.name!r}: its archived source behaves otherwise than the code it was taken of "
        f"({differing}); {_archived(definition)}; if the code was edited after this process imported it, "
        "start a new one"
    )


def _other_order(num_episodes: int) -> list[int]:
    """The last episode first. Of an odd number, one more before them: else the middle one would keep its place."""
    return [*range(num_episodes % 2), *reversed(range(num_episodes))]


def _replay(definition: Definition, recorded: Rollouts, order: Iterable[int]) -> Rollouts:
    with closing(construct(definition)) as env:
        return replay_rollouts(env, recorded, order)


def _difference(recorded: Rollouts, replayed: Rollouts) -> str | None:
    """Which episode is the first that differs, and where it begins to; None where all are equal to the bit."""
    for seed in range(len(recorded["length"])):
        before, after = select_episode(recorded, seed), select_episode(replayed, seed)
        if exact_digest(before) != exact_digest(after):
            first = first_difference(before, after)
            place = f"first in {first[0]} at step {first[2]}" if first else "in the sign of a zero or in a dtype"
            return f"episode {seed} differs, {place}"
    return None


def _archived(definition: Definition) -> str:
    roots = ", ".join(definition.source.roots)
    package = definition.source.roots[0].partition(".")[0]
    return (
        f"it holds the files of {roots}, without hidden files and linked folders; put what the code needs into "
        f"the package {package!r}"
    )

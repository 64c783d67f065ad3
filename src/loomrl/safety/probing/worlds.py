"""The examined environment with something changed: for checks that ask what a policy does there."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.environment.make import restored_definition
from loomrl.environment.resolve import Definition
from loomrl.safety.check import Context
from loomrl.safety.probing.probes import act_with
from loomrl.types import Episode, Policy

DRAWN = "parameter."  # begins what `Randomized` tells of the values it drew


def with_parameter(snapshot_folder: Path, name: str, value: Any) -> Definition:
    """The environment of a snapshot with this value of a parameter of its constructor, which is then not drawn.

    Raises:
        ArtifactError: when the snapshot was changed.
    """
    definition = restored_definition(snapshot_folder)
    drawn = {key: one for key, one in definition.randomize.items() if key != name}
    return replace(definition, kwargs={**definition.kwargs, name: value}, randomize=drawn)


def with_held_out_ranges(context: Context) -> Definition:
    """The examined environment with parameters drawn from the held-out ranges, which training never met.

    Raises:
        ArtifactError: when the snapshot was changed.
    """
    definition = restored_definition(context.snapshot_folder)
    return replace(definition, randomize={name: one.moved_out() for name, one in definition.randomize.items()})


def play_there(
    context: Context, definition: Definition, seeds: Sequence[int], rng: np.random.Generator
) -> list[Episode]:
    """One episode of the examined policy for each seed, in the changed environment; in the order of the seeds.

    Raises:
        LoomRLError: when an action is not finite; the environments do not see it.
        EnvironmentFault: when the environment breaks its API.
    """
    return play_in(definition, context.policy, seeds, min(context.config.num_envs, len(seeds)), rng)


def play_in(
    definition: Definition, policy: Policy, seeds: Sequence[int], num_envs: int, rng: np.random.Generator
) -> list[Episode]:
    """One episode of a policy for each seed, in so many environments of this definition; in the order of the seeds.

    Raises:
        LoomRLError: when an action is not finite; the environments do not see it.
        EnvironmentFault: when the environment breaks its API.
    """
    from loomrl.environment.collecting.collector import run_episodes
    from loomrl.environment.vector.choose import make_vector
    from loomrl.environment.vector.recipe import Recipe

    with closing(make_vector(Recipe(definition), num_envs, "disabled", "serial")) as envs:
        return run_episodes(envs, act_with(policy), seeds, rng)


def are_alike(some: Sequence[Episode], others: Sequence[Episode]) -> bool:
    """Whether in each episode the same was observed, done, earned and told as in the other one of its place, and it
    ended alike. What a randomized parameter is, which infos tell, is left out."""
    parts = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    return all(
        one.info.keys() == other.info.keys()
        and all(
            np.array_equal(one.info[key], other.info[key], equal_nan=True)
            for key in one.info
            if not key.startswith(DRAWN)
        )
        and all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)
        for one, other in zip(some, others, strict=True)
    )

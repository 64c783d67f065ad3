"""How likely an unsafe state is met at most, from any state an episode may begin with: bounds over boxes of states.

For environments with infinitely many states that say where boxes of them lead
(`loomrl.environment.finite.abstraction`). Which
actions the policy may take in a box is bounded on its exported graph, as certified properties are.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from pydantic import Field

from loomrl.errors import ArtifactError, ConfigError
from loomrl.safety.certified.properties import METHOD
from loomrl.safety.check import MODEL_CHECKING, CheckConfig, Context, Scope
from loomrl.safety.probing.probes import is_recurrent
from loomrl.types import Bound, Claim, ClaimLabel, LabelKind, Verdict

if TYPE_CHECKING:
    from loomrl.environment.finite.abstraction import Abstraction

NAME = "abstraction"
STAGE = MODEL_CHECKING
LOCAL = True

MOST_CELLS = 5_000_000  # with some 500 bytes each where all are visited


class AbstractionConfig(CheckConfig):
    """`cells` are how many parts each component of the state is cut into; without them nothing is claimed.

    `steps` are those of the longest episode where they are left out.
    """

    cells: list[int] | None = Field(default=None, min_length=1)
    max_probability: float = Field(default=0.01, ge=0, lt=1)
    steps: int | None = Field(default=None, ge=1)


Config = AbstractionConfig  # as all plug-ins of this kind name it


def check_spaces(config: AbstractionConfig, observation_space: Any, action_space: Any) -> None:
    """Raises `ConfigError` for cells that do not fit what is observed, before anything is trained."""
    if config.cells is None:
        return
    place = f"safety.checks.{NAME}.cells"
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
        raise ConfigError(f"{place}: observations are {observation_space}; cells need a vector of numbers")
    if observation_space.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"{place}: observations are {observation_space.dtype}, which rounds states by more than bounds allow for; "
            "declare the observation space as float32"
        )
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise ConfigError(f"{place}: actions are {action_space}; bounds need a Box, or a choice of actions")
    if len(config.cells) != observation_space.shape[0] or min(config.cells) < 1:
        raise ConfigError(f"{place}: found {config.cells}; give {observation_space.shape[0]} numbers, each at least 1")
    if (count := int(np.prod([float(count) for count in config.cells]))) > MOST_CELLS:
        raise ConfigError(f"{place}: {config.cells} are {count} cells; at most {MOST_CELLS} are held in memory")


def check_environment(config: AbstractionConfig, snapshot_folder: Path) -> None:
    """Raises `ConfigError` for an environment without an abstraction, before anything is trained, and `ArtifactError`
    where the snapshot was changed."""
    if config.cells is None:
        return
    with _abstracted(snapshot_folder):
        pass


@contextmanager
def _abstracted(snapshot_folder: Path) -> "Iterator[tuple[str, Abstraction]]":
    """The environment's name and its abstraction, which may ask the environment: it is open meanwhile."""
    from loomrl.environment.finite.abstraction import abstraction_of
    from loomrl.environment.make import make_env

    with closing(make_env(snapshot_folder)) as env:
        yield type(env.unwrapped).__name__, abstraction_of(env)


def examine(context: Context, config: AbstractionConfig) -> list[Claim]:
    """One claim, proved or undecided: what may happen in a box is more than what does happen. None without `cells`.

    It is undecided, too, where the policy is recurrent or its graph cannot be read.

    Raises:
        ConfigError: when `cells` do not fit the spaces, episodes have no longest one, the environment has no
            abstraction, or one that what was played contradicts.
    """
    if config.cells is None:
        return []
    from loomrl.environment.finite.abstraction import demand_held, worst_case
    from loomrl.safety.certified.choices import possible_actions
    from loomrl.safety.certified.policies import network_of
    from loomrl.safety.certified.verify import DIFFERENCE, demand_agreement

    check_spaces(config, context.observation_space, context.action_space)
    steps = config.steps or context.snapshot.spec.max_episode_steps
    if steps is None:
        raise ConfigError(f"safety.checks.{NAME}.steps: episodes have no longest one; say within how many steps")
    statement = (
        "whatever state an episode begins with, an unsafe one, as the environment's abstraction() says, is met within "
        f"{steps} steps with a probability of at most {config.max_probability:g}"
    )
    if is_recurrent(context.policy):
        return [context.undecided(statement, "a recurrent policy decides by more than the state")]
    with _abstracted(context.snapshot_folder) as (name, model):
        try:
            demand_held(model, context.episodes, name)
            policy = network_of(context.policy, context.action_space)
            demand_agreement(policy.network, policy.replay, model.low, model.high, "the policy's graph")
            found = worst_case(model, config.cells, possible_actions(policy.network, context.action_space), steps)
        except ArtifactError as error:
            return [context.undecided(statement, str(error))]
        holds = found.probability <= config.max_probability
        label = _label(model, config, context.action_space, steps) if holds else None
    evidence = {
        "kind": NAME,
        "cells": config.cells,
        "steps": steps,
        "num_cells": found.num_cells,
        "num_reached": found.num_reached,
        "probability": found.probability,
    }
    more = "" if holds else "; more cells may bring it down"
    return [
        context.claim(
            evidence,
            statement=statement,
            method=f"worst case over cells of states, within {steps} steps; the policy's actions in a cell by {METHOD}",
            verdict=Verdict.PROVED if holds else Verdict.UNDECIDED,
            assumptions=[
                "no state leads out of the boxes and probabilities that the environment's author states; what was "
                "played lay in the boxes",
                f"the policy's float32 differs from real arithmetic by at most {DIFFERENCE:g}, relative and absolute: "
                "that was compared at some states, and is no proof",
            ],
            bound=Bound(
                kind="sound upper", measured=found.probability, limit=config.max_probability, unit="probability"
            ),
            finding=(
                f"at most {found.probability:.4g}, over {found.num_reached} of {found.num_cells} cells that may be "
                f"visited{more}"
            ),
            label=label,
        )
    ]


def _label(model: "Abstraction", config: AbstractionConfig, space: Any, steps: int) -> ClaimLabel | None:
    """Where the bound holds whatever is done in each state."""
    from loomrl.environment.finite.abstraction import worst_case
    from loomrl.safety.certified.choices import all_actions

    assert config.cells is not None
    if isinstance(space, spaces.Box) and not np.isfinite([space.low, space.high]).all():
        return None
    most = worst_case(model, config.cells, all_actions(space), steps).probability
    if most > config.max_probability:
        return None
    reason = f"whatever is done in each state, an unsafe one is met with a probability of at most {most:.4g}"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def scope(config: AbstractionConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"every state an episode may begin with: {claim.finding}",
        "that the boxes and probabilities the environment's author states hold everything that can happen",
        "nothing can refute it; it stays open where the bound over cells is above the limit",
    )

"""Properties that a config names, each a claim of its own: what the checks of them have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import Field, model_validator

from loomrl.errors import ArtifactError
from loomrl.safety.check import CheckConfig, Context
from loomrl.system.schema import Section, demand_distinct
from loomrl.types import Claim, Json, Verdict

METHOD = "bound propagation (CROWN) with optimised slopes and input splitting, in float64, on the exported graph"


class PropertyConfig(Section):
    """What all properties have: a name, in small letters, with which their claim's id ends."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")


P = TypeVar("P", bound=PropertyConfig)


class PropertiesConfig(CheckConfig, Generic[P]):
    """Properties with names that differ; none by default."""

    properties: list[P] = Field(default_factory=list)

    @model_validator(mode="after")
    def _distinct(self) -> "PropertiesConfig[P]":
        demand_distinct(self.properties, "properties")
        return self


class BoundedPropertiesConfig(PropertiesConfig[P], Generic[P]):
    """Properties, each with a budget of boxes, so that the answer does not depend on how fast the machine is.

    A property that `max_boxes` boxes leave open is undecided.
    """

    max_boxes: int = Field(default=100_000, ge=1)


@dataclass(frozen=True)
class PropertyOutcome:
    """What bounds say of a property after `num_boxes` boxes: PROVED, REFUTED or UNDECIDED.

    A refuting `example` holds its observation, None where there is none; `shown` says in words what it does. `evidence`
    is kept beside.
    """

    verdict: Verdict
    num_boxes: int
    example: Json | None = None
    shown: str = ""
    evidence: Json = field(default_factory=dict)  # what is kept beside


def bounded_properties(
    context: Context,
    config: BoundedPropertiesConfig[P],
    statement: Callable[[P], str],
    decide: Callable[[P, Any, Any], PropertyOutcome],
    method: str = METHOD,
    bounds: str = "bounds",
) -> list[Claim]:
    """A claim for each property of the config, in its order.

    Where the policy's graph cannot be read as a network, all are UNDECIDED and say why.

    Args:
        statement: what the claim of a property states.
        decide: the outcome of a property, from the policy's network as it is and packed.
        method: how it is decided, in words.
        bounds: what is computed, as the finding of a proved claim names it.
    """
    from loomrl.safety.certified.packed import pack
    from loomrl.safety.certified.policies import network_of
    from loomrl.safety.certified.search import SLACK

    try:
        policy = network_of(context.policy, context.action_space)
    except ArtifactError as error:
        return [context.undecided(statement(prop), str(error), prop.name) for prop in config.properties]
    network, claims = pack(policy.network), []
    assumed = f"bounds in real arithmetic, with a slack of {SLACK:g}: no proof about the rounding of float32"
    for prop in config.properties:
        found = decide(prop, policy, network)
        evidence = {"kind": context.check, "property": prop.model_dump(mode="json"), "num_boxes": found.num_boxes}
        examples = {"examples": [] if found.example is None else [found.example]}
        finding = {
            Verdict.PROVED: f"{bounds} over {found.num_boxes} boxes exclude it",
            Verdict.UNDECIDED: f"open after {found.num_boxes} boxes; raise max_boxes, or make the region smaller",
        }.get(found.verdict, found.shown)
        claims.append(
            context.claim(
                evidence | found.evidence | examples,
                prop.name,
                failure=finding if found.example else None,
                statement=statement(prop),
                method=method,
                verdict=found.verdict,
                assumptions=[assumed],
                finding=finding,
            )
        )
    return claims

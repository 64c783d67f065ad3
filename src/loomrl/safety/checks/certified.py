"""What the policy does everywhere in a region: declared properties, decided by bounds and not by samples.

A property names a region of observations and what must hold there: actions that are never chosen, or limits of a
continuous action. See `loomrl.safety.certified` for how it is decided.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator

from loomrl.errors import ConfigError
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.certified import properties
from loomrl.safety.certified.properties import PropertyOutcome
from loomrl.safety.certified.regions import Region, box_of, described, preferred, refusal, region_demand
from loomrl.safety.certified.vnnlib import Case
from loomrl.safety.check import CERTIFIED, Context, Demand, Scope
from loomrl.safety.probing.probes import ask, keeps_bounds
from loomrl.types import Claim, ClaimLabel, LabelKind

NAME = "certified"
STAGE = CERTIFIED
LOCAL = True


class CertifiedPropertyConfig(properties.PropertyConfig):
    """In a region, `never` lists actions that are not chosen (Discrete), or `low` and `high` limit component `action`
    of the action (Box), which stays strictly between them.

    `region` gives ranges of components: `observation[2]: [-0.2, -0.1]`. A component it leaves out has the range of the
    observation space, which must then be finite.
    """

    region: Region
    never: list[int] = Field(default_factory=list)
    action: int = Field(default=0, ge=0)  # which component of a continuous action is limited
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "CertifiedPropertyConfig":
        if bool(self.never) == (self.low is not None or self.high is not None):
            raise ValueError("give `never`, for a choice of actions, or `low` and `high`, for a continuous action")
        return self


CertifiedConfig = properties.BoundedPropertiesConfig[CertifiedPropertyConfig]
Config = CertifiedConfig  # as all plug-ins of this kind name it


def check_spaces(config: CertifiedConfig, observation_space: Any, action_space: Any) -> None:
    """Raises `ConfigError` for a property that these spaces do not allow, before anything is trained."""
    for prop in config.properties:
        box_of(prop.region, observation_space, refusal(NAME, "properties", prop.name))
        _unsafe(prop, action_space)


def examine(context: Context, config: CertifiedConfig) -> list[Claim]:
    """One claim for each property of the config, proved or refuted for all inputs of its region, or undecided.

    Raises:
        ConfigError: for a property that the spaces do not allow.
    """
    if not config.properties:
        return []
    check_spaces(config, context.observation_space, context.action_space)
    claims = properties.bounded_properties(context, config, _statement, partial(_decide, context, config.max_boxes))
    labels = [_label(context, prop) for prop in config.properties]
    return [claim.model_copy(update={"label": label}) for claim, label in zip(claims, labels, strict=True)]


def scope(config: CertifiedConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    promises = {f"{NAME}.{prop.name}": _promised(prop) for prop in config.properties}
    return Scope(
        f"every observation of the region, by bounds over at most {config.max_boxes} boxes",
        "anything outside the region; what the rounding of float32 may change",
        f"an observation of the region for which it is not so that {promises.get(claim.id, claim.statement)}",
    )


def demands(context: Context, config: CertifiedConfig) -> dict[str, Demand]:
    """What each property asks for, by claim id: the more the larger its region, and the more it rules out there."""
    return {f"{NAME}.{prop.name}": _demand(context, prop) for prop in config.properties}


def _demand(context: Context, prop: CertifiedPropertyConfig) -> Demand:
    region = region_demand(prop.region, context.observation_space, refusal(NAME, "properties", prop.name))
    if prop.never:
        start, count = int(context.action_space.start), int(context.action_space.n)
        return Demand((NAME,), (*region, *(float(action in prop.never) for action in range(start, start + count))))
    low, high = -math.inf if prop.low is None else prop.low, math.inf if prop.high is None else prop.high
    return Demand((NAME, prop.action), (*region, low, -high))


def _statement(prop: CertifiedPropertyConfig) -> str:
    return f"for every observation with {described(prop.region)}, {_promised(prop)}"


def _label(context: Context, prop: CertifiedPropertyConfig) -> ClaimLabel | None:
    """Of limits beyond the bounds that the policy itself keeps its actions within."""
    space = context.action_space
    if not isinstance(space, spaces.Box) or not keeps_bounds(context.policy):
        return None
    least, greatest = space.low.flat[prop.action], space.high.flat[prop.action]
    if (prop.low is not None and prop.low >= least) or (prop.high is not None and prop.high <= greatest):
        return None
    reason = f"the policy itself keeps action[{prop.action}] within {least:g} and {greatest:g}"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def _decide(
    context: Context, max_boxes: int, prop: CertifiedPropertyConfig, policy: Any, network: Any
) -> PropertyOutcome:
    from loomrl.safety.certified.search import PropertySearch

    low, high = box_of(prop.region, context.observation_space, refusal(NAME, "properties", prop.name))
    cases = [Case(low, high, rows, limits) for rows, limits in _unsafe(prop, context.action_space)]

    def confirm(inputs: NDArray[np.float64], case: Case) -> NDArray[np.float32] | None:
        """Of equal logits the first is chosen, which may be another one."""
        candidate: NDArray[np.float32] | None = policy.replay.confirm(inputs, case)
        if candidate is None or not prop.never:
            return candidate
        return candidate if int(policy.replay(candidate).argmax()) + context.action_space.start in prop.never else None

    found = PropertySearch(network, cases, confirm).run(math.inf, max_boxes)
    evidence = {"region": {f"observation[{index}]": [low[index], high[index]] for index in range(len(low))}}
    if found.inputs is None:
        return PropertyOutcome(found.claimed, found.num_boxes, evidence=evidence)
    obs = found.inputs.astype(context.observation_space.dtype).reshape(1, -1)
    action = np.asarray(ask(context.policy, obs))[0].tolist()
    example = {"observation": obs[0].tolist(), "action": repr(action)}
    shown = f"the action for {obs[0].tolist()} is {action}"
    return PropertyOutcome(found.claimed, found.num_boxes, example, shown, evidence)


def replay(failure: Failure) -> Replayed:
    """Ask the policy about the observation that broke the property: reproduced where its action breaks it again."""
    prop = CertifiedPropertyConfig.model_validate(failure.document["property"])
    obs = failure.observation()
    action = np.asarray(ask(failure.policy, obs))[0]
    if prop.never:
        broken = int(action) in prop.never
    else:
        value = float(action.reshape(-1)[prop.action])
        broken = (prop.low is not None and value <= prop.low) or (prop.high is not None and value >= prop.high)
    return Replayed(reproduced=broken, finding=f"the action for {obs[0].tolist()} is {action.tolist()}")


def _unsafe(prop: CertifiedPropertyConfig, space: Any) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """What must not happen, as limits on the outputs: (rows, limits) for each way."""
    refused = refusal(NAME, "properties", prop.name)
    if prop.never:
        if not isinstance(space, spaces.Discrete):
            raise refused(f"`never` needs a choice of actions, and they are {space}; give `low` and `high`")
        ways = [_chosen(action, int(space.start), int(space.n), refused) for action in sorted({*prop.never})]
        if len(ways) == space.n:
            raise refused("never: no action is left to choose; leave one out")
        return ways
    if not isinstance(space, spaces.Box):
        raise refused(f"`low` and `high` need a continuous action, and they are {space}; give `never`")
    size = int(np.prod(space.shape))
    if prop.action >= size:
        raise refused(f"there is no action[{prop.action}]; actions have {size} components")
    ways = []
    for limit, sign in ((prop.low, 1.0), (prop.high, -1.0)):
        if limit is not None:  # at or beyond the limit is unsafe
            row = np.zeros((1, size))
            row[0, prop.action] = sign
            ways.append((row, np.array([sign * limit])))
    return ways


def _chosen(
    action: int, first: int, count: int, refused: Callable[[str], ConfigError]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The action's logit is the largest."""
    if not first <= action < first + count:
        raise refused(f"never: there is no action {action}; they are {first} to {first + count - 1}")
    rows = preferred(action - first, count)
    return rows, np.zeros(len(rows))


def _promised(prop: CertifiedPropertyConfig) -> str:
    if prop.never:
        return f"action {' or '.join(map(str, prop.never))} is not chosen"
    parts = [f"above {prop.low:g}"] if prop.low is not None else []
    parts += [f"below {prop.high:g}"] if prop.high is not None else []
    return f"action[{prop.action}] is {' and '.join(parts)}"

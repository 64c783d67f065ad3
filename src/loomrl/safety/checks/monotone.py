"""The response to a sensor goes one way: declared properties of pairs of observations, decided by bounds of slopes.

More of one component never lowers a continuous action; or, once an action is chosen, more of it never makes the policy
choose another one.
"""

from functools import partial
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.certified import properties
from loomrl.safety.certified.properties import PropertyOutcome
from loomrl.safety.certified.regions import (
    Component,
    Region,
    box_of,
    described,
    place_of,
    preferred,
    refusal,
    region_demand,
)
from loomrl.safety.check import CERTIFIED, Context, Demand, Scope
from loomrl.safety.probing.probes import ask, one_action_alone
from loomrl.types import Claim, Verdict

NAME = "monotone"
STAGE = CERTIFIED
LOCAL = True

Array = NDArray[np.float64]
_LINES, _POINTS = 256, 65  # along the sensor, where exceptions are looked for


class MonotonePropertyConfig(properties.PropertyConfig):
    """In a region, more of `sensor` moves `action` one way, or nowhere.

    `action` is a component of a continuous action, or one of a choice: with `rising`, more of the sensor keeps it
    chosen; with `falling`, less of it does. A continuous action that goes the other way by `tolerance` refutes it.
    """

    region: Region
    sensor: Component
    action: int = Field(default=0, ge=0)
    direction: Literal["rising", "falling"]
    tolerance: float = Field(default=1e-4, gt=0)


MonotoneConfig = properties.BoundedPropertiesConfig[MonotonePropertyConfig]
Config = MonotoneConfig  # as all plug-ins of this kind name it


def check_spaces(config: MonotoneConfig, observation_space: Any, action_space: Any) -> None:
    """Raises `ConfigError` for a property that these spaces do not allow, before anything is trained."""
    for prop in config.properties:
        refused = refusal(NAME, "properties", prop.name)
        low, high = box_of(prop.region, observation_space, refused)
        place = place_of(prop.sensor, observation_space, refused)
        if low[place] == high[place]:
            raise refused(f"region: {prop.sensor} has one value alone, {low[place]:g}; there is no more or less of it")
        _rows(prop, action_space)


def examine(context: Context, config: MonotoneConfig) -> list[Claim]:
    """One claim for each property of the config: whether the policy's actions are monotone, or it is undecided.

    Raises:
        ConfigError: for a property that the spaces do not allow.
    """
    if not config.properties:
        return []
    space = context.action_space
    check_spaces(config, context.observation_space, space)
    claims = properties.bounded_properties(
        context,
        config,
        lambda prop: f"wherever {described(prop.region)}, {_promised(prop, space)}",
        partial(_examine_property, context, config),
        method="bounds of the derivative on boxes that are halved, in float64, on the exported graph",
        bounds="bounds of the slope",
    )
    return [claim.model_copy(update={"label": one_action_alone(space)}) for claim in claims]


def scope(config: MonotoneConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"every pair of observations of the region along the sensor, by bounds over at most {config.max_boxes} boxes",
        "other regions and other sensors; what the rounding of float32 may change",
        "two observations of the region that differ in the sensor alone and are answered the other way round",
    )


def demands(context: Context, config: MonotoneConfig) -> dict[str, Demand]:
    """What each property asks for, by claim id: the more the larger its region, and the less it tolerates."""
    return {f"{NAME}.{prop.name}": _demand(context, prop) for prop in config.properties}


def _demand(context: Context, prop: MonotonePropertyConfig) -> Demand:
    region = region_demand(prop.region, context.observation_space, refusal(NAME, "properties", prop.name))
    space = context.action_space
    if not isinstance(space, spaces.Discrete):
        return Demand((NAME, prop.sensor, prop.action, prop.direction), (*region, -prop.tolerance))
    action, direction = prop.action - int(space.start), prop.direction
    if space.n == 2 and action == 1:  # what keeps the one chosen is what keeps the other from it
        action, direction = 0, "falling" if direction == "rising" else "rising"
    return Demand((NAME, prop.sensor, action, direction), region)


def _examine_property(
    context: Context, config: MonotoneConfig, prop: MonotonePropertyConfig, policy: Any, network: Any
) -> PropertyOutcome:
    low, high = box_of(prop.region, context.observation_space, refusal(NAME, "properties", prop.name))
    place = place_of(prop.sensor, context.observation_space, refusal(NAME, "properties", prop.name))
    found = _exception(prop, policy, context.action_space, _drawn(low, high), (low, high), place)
    verdict, num_boxes = Verdict.REFUTED, 0
    if found is None:
        verdict, num_boxes, found = _decide(config, prop, policy, network, context.action_space, (low, high), place)
    if found is None:
        return PropertyOutcome(verdict, num_boxes)
    obs = found.astype(context.observation_space.dtype)
    actions = np.asarray(ask(context.policy, obs)).tolist()
    example = {"observation": obs[0].tolist(), "raised": obs[1].tolist(), "actions": repr(actions)}
    shown = f"the action for {obs[0].tolist()} is {actions[0]}; for {obs[1].tolist()} it is {actions[1]}"
    return PropertyOutcome(verdict, num_boxes, example, shown)


def replay(failure: Failure) -> Replayed:
    """Ask the policy about both observations of a failure again: reproduced where its actions go the other way
    again."""
    prop = MonotonePropertyConfig.model_validate(failure.document["property"])
    (example,) = failure.document["examples"]
    obs = np.asarray([example["observation"], example["raised"]], dtype=failure.observation_space.dtype)
    actions = np.asarray(ask(failure.policy, obs))
    if isinstance(failure.action_space, spaces.Discrete):
        before, after = (actions[0], actions[1]) if prop.direction == "rising" else (actions[1], actions[0])
        broken = int(before) == prop.action and int(after) != prop.action
    else:
        flat = actions.reshape(2, -1)[:, prop.action].astype(np.float64)
        rise = float(flat[1] - flat[0])
        broken = (rise if prop.direction == "rising" else -rise) <= -0.5 * prop.tolerance  # float32 may round the rest
    shown = f"{actions[0].tolist()} for {obs[0].tolist()}, {actions[1].tolist()} for {obs[1].tolist()}"
    return Replayed(reproduced=bool(broken), finding=f"the actions are {shown}")


def _decide(
    config: MonotoneConfig,
    prop: MonotonePropertyConfig,
    policy: Any,
    network: Any,
    space: Any,
    box: tuple[Array, Array],
    place: int,
) -> tuple[Verdict, int, NDArray[np.float32] | None]:
    """Proved when each row rises; where the search stops, exceptions are looked for once more."""
    from loomrl.safety.certified.monotone import MonotoneResponse, rises
    from loomrl.safety.certified.search import SolverVerdict as Answer

    num_boxes, discrete = 0, isinstance(space, spaces.Discrete)
    for row in _rows(prop, space):
        outcome = rises(network, MonotoneResponse(*box, row, place, at_zero=discrete), config.max_boxes)
        num_boxes += outcome.num_boxes
        if outcome.verdict is not Answer.UNSAT:
            found = _exception(prop, policy, space, outcome.inputs[:_LINES], box, place)
            return (Verdict.UNDECIDED if found is None else Verdict.REFUTED), num_boxes, found
    return Verdict.PROVED, num_boxes, None


def _drawn(low: Array, high: Array) -> Array:
    return np.random.default_rng(0).uniform(low, high, (_LINES, len(low)))


def _exception(
    prop: MonotonePropertyConfig, policy: Any, space: Any, inputs: Array, box: tuple[Array, Array], place: int
) -> NDArray[np.float32] | None:
    """Two observations, (2, num_inputs), on a line along the sensor through one of the inputs, that break the property
    in the runtime that ships."""
    lines = np.repeat(inputs[:, None], _POINTS, axis=1)  # (lines, points, num_inputs)
    lines[:, :, place] = np.linspace(box[0][place], box[1][place], _POINTS)
    outputs = policy.network(lines)
    if prop.direction == "falling":
        lines, outputs = lines[:, ::-1], outputs[:, ::-1]
    if isinstance(space, spaces.Discrete):
        chosen = outputs.argmax(-1) == prop.action - int(space.start)
        first = chosen.argmax(1)
        lost = np.maximum.accumulate(chosen, axis=1) & ~chosen
        candidates = [(line, first[line], lost[line].argmax()) for line in np.flatnonzero(lost.any(1))]
    else:
        value = outputs[..., prop.action]
        drop = np.maximum.accumulate(value, axis=1) - value
        last = drop.argmax(1)
        candidates = [
            (line, value[line, : last[line] + 1].argmax(), last[line]) for line in np.argsort(-drop.max(1))[:8]
        ]
        candidates = [one for one in candidates if drop[one[0], one[2]] > prop.tolerance]
    for line, before, after in candidates:
        pair = np.clip(lines[line, [before, after]], *box).astype(np.float32)
        if _broken(prop, space, policy.replay(pair[0]), policy.replay(pair[1])):
            return pair if prop.direction == "rising" else pair[::-1]
    return None


def _broken(prop: MonotonePropertyConfig, space: Any, before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
    if isinstance(space, spaces.Discrete):
        action = prop.action - int(space.start)
        return int(before.argmax()) == action and int(after.argmax()) != action
    return float(before[prop.action]) - float(after[prop.action]) > prop.tolerance


def _rows(prop: MonotonePropertyConfig, space: Any) -> list[Array]:
    """What must rise with the sensor, as sums of outputs: a component, or the margin to each other action."""
    sign = 1.0 if prop.direction == "rising" else -1.0
    if isinstance(space, spaces.Box):
        size = int(np.prod(space.shape))
        if prop.action >= size:
            raise refusal(NAME, "properties", prop.name)(
                f"there is no action[{prop.action}]; actions have {size} components"
            )
        return [sign * np.eye(size)[prop.action]]
    if not isinstance(space, spaces.Discrete):
        raise refusal(NAME, "properties", prop.name)(
            f"actions are {space}; a response is that of a continuous action or of a choice of actions"
        )
    first, count = int(space.start), int(space.n)
    if not first <= prop.action < first + count:
        raise refusal(NAME, "properties", prop.name)(
            f"there is no action {prop.action}; they are {first} to {first + count - 1}"
        )
    return [-sign * row for row in preferred(prop.action - first, count)]


def _promised(prop: MonotonePropertyConfig, space: Any) -> str:
    if isinstance(space, spaces.Box):
        return (
            f"more of {prop.sensor} never {'lowers' if prop.direction == 'rising' else 'raises'} action[{prop.action}]"
        )
    more = "more" if prop.direction == "rising" else "less"
    return f"once action {prop.action} is chosen, {more} of {prop.sensor} never makes another the choice"

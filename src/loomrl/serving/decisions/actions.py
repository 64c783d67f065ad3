"""Actions that people name: checked against the action space before they are pinned or taken."""

from typing import Any

import numpy as np

from loomrl.serving.decisions.packing import goes_on
from loomrl.serving.decisions.requests import check_kinds
from loomrl.serving.policy.model import TEXT, ServedPolicy
from loomrl.system.http.problems import Problem

_FLOATS, _WHOLE = np.dtype(np.float32), np.dtype(np.int64)


def check_action(value: Any, policy: ServedPolicy) -> Any:
    """The action that a person names, as the graph gives it: an integer of a discrete space, else an array (*action).

    Raises:
        Problem: 400 when it is not in the action space.
    """
    space = policy.manifest.environment.action
    if policy.kind == "discrete":
        start, size = int(space.get("start", 0)), int(space["n"])
        if isinstance(value, bool) or not isinstance(value, int) or not start <= value < start + size:
            raise Problem(400, f"action {value!r} is not one of {start} to {start + size - 1}")
        return np.int64(value)
    if policy.chooses:
        return _check_choices(value, policy)
    check_kinds(value, _FLOATS, "action")
    try:
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite, and refused
            action = np.array(value, dtype=_FLOATS)
    except (TypeError, ValueError, OverflowError) as error:
        raise Problem(400, f"action {value!r} is no list of numbers") from error
    shape = tuple(policy.manifest.outputs["action"]["shape"][1:])
    if action.shape != shape or not np.isfinite(action).all():
        raise Problem(400, f"action {value!r} must be {list(shape)} finite numbers")
    if policy.bounds is not None and ((action < policy.bounds[0]) | (action > policy.bounds[1])).any():
        raise Problem(400, f"action {value!r} leaves the action space's bounds")
    return action


def _check_choices(value: Any, policy: ServedPolicy) -> Any:
    """Several whole numbers, each within its own range."""
    space = policy.manifest.environment.action
    start = np.asarray(space.get("start", 0))
    each = 256 if policy.kind == TEXT else 2
    size = np.asarray(space["nvec"]) if policy.kind == "multi_discrete" else np.full(space["shape"], each)
    check_kinds(value, _WHOLE, "action")
    try:
        action = np.array(value)
    except ValueError as error:
        raise Problem(400, f"action {value!r} is ragged") from error
    if action.shape != size.shape or action.dtype.kind != "i":
        raise Problem(400, f"action {value!r} must be {list(size.shape)} whole numbers")
    if ((action < start) | (action >= start + size)).any():
        ranges = f"{start.tolist()} to {(start + size - 1).tolist()}"
        raise Problem(400, f"action {value!r} is not within {ranges}")
    if policy.kind == TEXT and goes_on(action.tolist()):
        raise Problem(400, f"action {value!r} has bytes after its end, which the first zero is")
    return action.astype(policy.manifest.outputs["action"]["dtype"])

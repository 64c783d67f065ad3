"""Actions that are there to break a property: those that make the paths it names the likeliest, or the least likely."""

from collections.abc import Iterator

import numpy as np

from loomrl.environment.finite.model import FiniteModel, Ints, Mask
from loomrl.environment.finite.prism.expressions import evaluate
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.safety.model_checking.forms import as_until
from loomrl.safety.model_checking.pctl import asks

_SWEEPS = 1_000
_CHANGED = 1e-12


def spoilers(model: FiniteModel, formula: Expression) -> Iterator[Ints]:
    """For each P in a formula an action in each state, (S,), for the likeliest way to meet its path, and for the least
    likely. Of a P about other P or R, there are none.

    Raises:
        ConfigError: for a name or label that does not exist, or one in another's place.
    """
    for path in _paths(formula):
        through, num_steps, target = _reach(model, path)
        for is_likely in (True, False):
            yield _extreme(model, through, target, num_steps, is_likely)


def _paths(formula: Expression) -> Iterator[Expression]:
    """The paths whose conditions are on states alone."""
    for part in formula.args:
        if isinstance(part, Expression):
            yield from _paths(part)
    if formula.op == "probability":
        path, _ = as_until(formula.args[1])
        if not asks(path):
            yield path


def _reach(model: FiniteModel, path: Expression) -> tuple[Mask, int, Mask]:
    """What is passed through, in how many steps at most, and what is reached."""
    states = model.states

    def where(condition: Expression) -> Mask:
        return np.array(np.broadcast_to(evaluate(condition, states.scope(), states.labels), (len(states),)), np.bool_)

    if path.op == "next":
        return np.ones(len(states), np.bool_), 1, where(path.args[0])
    through, steps, target = path.args
    if steps is None:
        return where(through), _SWEEPS, where(target)
    relation, count = steps.args
    num_steps = int(evaluate(count, states.constants)) - (relation == "<")
    return where(through), min(_SWEEPS, num_steps), where(target)


def _extreme(model: FiniteModel, through: Mask, target: Mask, num_steps: int, is_likely: bool) -> Ints:
    """Value iteration (Baier & Katoen, section 10.6.1). Of actions that are alike, the likeliest way takes the one that
    was so first: another one may go in circles."""
    value, chosen = target.astype(np.float64), np.zeros(len(target), np.int64)
    for _ in range(num_steps):
        weighed = np.add.reduceat(model.probabilities * value[model.columns], model.row_start[:-1])
        after = weighed.reshape(len(target), -1)
        best = after.max(axis=1) if is_likely else after.min(axis=1)
        changed = through & ~target & (np.abs(best - value) > _CHANGED)
        chosen = np.where(changed, after.argmax(axis=1), chosen) if is_likely else after.argmin(axis=1)
        if not changed.any():
            break
        value = np.where(changed, best, value)
    return chosen

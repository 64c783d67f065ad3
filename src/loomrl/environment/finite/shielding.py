"""Builds shields: which actions are allowed in each state, so that what is unsafe stays out of reach.

Where some choice keeps the unsafe states out of reach for ever, only such choices are allowed (the greatest fixed
point; Bloem et al., Shield synthesis, TACAS 2015). Elsewhere those whose risk is within a factor of the least one
(Jansen et al., Safe reinforcement learning using probabilistic shields, CONCUR 2020).
"""

import numpy as np

from loomrl.environment.finite.chain_kernels import losing
from loomrl.environment.finite.model import Chain, FiniteModel, Floats, Ints, Mask, States
from loomrl.environment.finite.of_environment import TERMINATED, Modelled
from loomrl.environment.finite.prism.expressions import evaluate, is_boolean
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.environment.finite.reachability import until
from loomrl.environment.finite.shield import Shield
from loomrl.errors import ConfigError

_IMPROVEMENTS = 1_000
_IMPROVED = 1e-9  # by which another choice must be less risky
_ACCURATE = 1e-6


def states_where(condition: str, states: States, place: str) -> Mask:
    """Which states, (S,), meet a condition in the PRISM language, such as `"crash"` or `s=5|s=7`.

    Raises:
        ConfigError: naming `place`, for what cannot be read, or is no condition.
    """
    try:
        value = evaluate(read_property(condition), states.scope(), states.labels)
    except ConfigError as error:
        raise ConfigError(f"{place} {condition!r}: {error}") from error
    if not is_boolean(value):
        raise ConfigError(f"{place} {condition!r} is a number; write a condition, such as s=5")
    return np.array(np.broadcast_to(np.asarray(value), (len(states),)), np.bool_)


def build_shield(modelled: Modelled, unsafe: Mask, tolerance: float = 0.0) -> Shield:
    """A shield of all states in which something is decided: those in which an episode has not ended.

    Raises:
        ConfigError: for a negative tolerance, when an observation does not tell two states apart, or when the model is
            ill-conditioned, so that its risks cannot be computed.
    """
    allowed, risk = allowed_choices(modelled.model, unsafe, tolerance)
    deciding = ~modelled.model.states.labels.get(TERMINATED, np.zeros(len(unsafe), np.bool_))
    return Shield(modelled.observations[deciding], allowed[deciding], risk[deciding])


def allowed_choices(model: FiniteModel, unsafe: Mask, tolerance: float = 0.0) -> tuple[Mask, Floats]:
    """What is allowed in each state, and at which risk: (S, A) each.

    Args:
        model: choice a of every state is action a.
        unsafe: which states, (S,), must not be reached.
        tolerance: where no choice is safe for ever, one is allowed up to (1 + tolerance) times the least risk.

    Raises:
        ConfigError: for a negative tolerance, or when the model is ill-conditioned: its risks cannot be computed.
    """
    if tolerance < 0.0:
        raise ConfigError(f"tolerance is {tolerance:g}; it is at least 0")
    count = len(model.action_names)
    lost = losing(model.choice_start, model.row_start, model.columns, unsafe)
    to_lost = np.bincount(_owners(model), weights=lost[model.columns], minlength=model.num_choices)
    safe = to_lost.reshape(-1, count) == 0.0
    # States that can be kept safe for ever are, so what is unsafe is not reached from them. No set of the others can be
    # stayed in without it: their risks are the only solution of their equations, and improvement finds it.
    chosen = model.choice_start[:-1] + safe.argmax(axis=1)
    for _ in range(_IMPROVEMENTS):
        value = _value(model.chain(chosen), unsafe)
        risk = _risks(model, value, unsafe).reshape(-1, count)
        current = risk[np.arange(len(chosen)), chosen - model.choice_start[:-1]]
        better = lost & (risk.min(axis=1) < current - _IMPROVED)
        if not better.any():
            break
        chosen = np.where(better, model.choice_start[:-1] + risk.argmin(axis=1), chosen)
    else:
        raise ConfigError(f"the least risk was not found in {_IMPROVEMENTS} improvements: the model is ill-conditioned")
    risk[safe & ~unsafe[:, None]] = 0.0
    allowed = risk <= risk.min(axis=1, keepdims=True) * (1.0 + tolerance)
    return np.where((~lost)[:, None], safe, allowed), risk


def _value(chain: Chain, unsafe: Mask) -> Floats:
    """How likely a policy's chain is to reach what is unsafe, at most: 0 only where it cannot."""
    bounds = until(chain, np.ones(len(unsafe), np.bool_), unsafe)
    if np.any(bounds.high - bounds.low > _ACCURATE):
        raise ConfigError("the risk of a policy could not be computed to 1e-6: the model is ill-conditioned")
    return bounds.high


def _risks(model: FiniteModel, value: Floats, unsafe: Mask) -> Floats:
    """How likely each choice, (C,), leads to what is unsafe when the policy behind `value` goes on."""
    owner = _owners(model)
    risk = np.bincount(owner, weights=model.probabilities * value[model.columns], minlength=model.num_choices)
    return np.where(np.repeat(unsafe, np.diff(model.choice_start)), 1.0, np.minimum(risk, 1.0))


def _owners(model: FiniteModel) -> Ints:
    """The choice of each transition."""
    return np.repeat(np.arange(model.num_choices), np.diff(model.row_start))

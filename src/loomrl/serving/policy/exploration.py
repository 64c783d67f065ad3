"""Actions drawn at random, with the exact probability (or density) that what is done had.

What an agent gets is one of a mixture: the greedy action with probability 1 - `share` where it did not ask to explore,
else a draw as `ExplorationConfig` says. The propensity is the mixture's, summed over all that leads to the action that
is taken: several draws of the mixture may be one action, and a shield may take one action for many.

Choices (discrete, several at once, bits) have probabilities. Continuous actions have the density of the draw before it
was clipped, times its part of the mixture: `clipped` marks those that were, for the probability of the bound itself is
another number. A greedy continuous action, and one that a fallback takes instead, has a probability again.

Each draw has random numbers of its own, which the audit log brings back: Philox (Salmon et al., Parallel random
numbers: as easy as 1, 2, 3, 2011) counts from where the record's `draw` and `row` say, under the process's key, which
stands in the `open` record of each segment.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError
from loomrl.serving.config import Kind
from loomrl.serving.policy.model import TEXT, PolicyOutput, ServedPolicy
from loomrl.serving.policy.shield import LOOK_UP, ComponentLimits, NotAllowed, not_allowed
from loomrl.system.http.problems import Problem
from loomrl.types import FloatArray

_ROUNDING = 1e-12  # probabilities below it are none
_MOST = 700.0  # of a density's logarithm: beyond it a double ends
_ACTION_VALUES = ("dqn",)  # algorithms whose logits are expected returns
_CONTINUOUS = ("continuous", "squashed")
_ONLY_GREEDY = "its graph chooses each byte of a text after the greedy ones before it, and knows no others"

Floats = NDArray[np.float64]
Fallback = Callable[[], Any] | None  # what gives the action in place of one that is not allowed
Mixture = list[tuple[float, list[Floats]]]  # probability of each part; of each choice in it, those of its values


class Draws:
    """Random numbers by (draw, row): the same ones whenever they are asked for under the same key, a hexadecimal
    number.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._philox = np.random.Philox(key=int(key, 16))
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    @classmethod
    def seeded(cls, seed: int | None) -> "Draws":
        """Random numbers under a key made of a seed; of the system's entropy without one."""
        if seed is None:
            return cls(secrets.token_hex(16))
        low, high = np.random.SeedSequence(seed).generate_state(2, np.uint64).tolist()
        return cls(f"{high << 64 | low:032x}")

    def at(self, draw: int, row: int = 0) -> np.random.Generator:
        """Where the numbers of a decision begin. Good until the next call: one generator is set back (1 us, not 8)."""
        self._state["state"]["counter"][:] = (0, 0, row, draw)
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0  # nothing is left over
        self._philox.state = self._state
        return self._generator


@dataclass(frozen=True, slots=True)
class ExploredChoice:
    """What is done, how likely it was, and what was drawn where a shield does something else.

    `chosen` is what was drawn, and `by` what prevented it, None where nothing did; `by_fallback`: a fallback acts
    instead.
    """

    action: Any
    propensity: float
    explored: bool  # False: the greedy action of a decision nobody asked to explore in
    clipped: bool = False  # to the bounds, or to what a shield allows
    chosen: Any = None
    by: str | None = None  # what prevented what was chosen
    by_fallback: bool = False


def kind_for(policy: ServedPolicy) -> Kind:
    """How a policy explores: as it is configured, else as its outputs suggest."""
    if policy.exploration.kind is not None:
        return policy.exploration.kind
    return "epsilon" if policy.manifest.algorithm in _ACTION_VALUES else "policy"


def require_fit(policy: ServedPolicy) -> None:
    """Raises `ArtifactError` where a policy cannot explore as it is configured to."""
    kind = kind_for(policy)
    if policy.kind == TEXT and (policy.exploration.kind is not None or policy.exploration.share):
        raise ArtifactError(
            f"{policy.manifest.name} cannot explore: {_ONLY_GREEDY}; leave serving.exploration and --explore out"
        )
    if (kind in ("epsilon", "softmax") and not policy.chooses) or (kind == "gaussian" and policy.chooses):
        fitting = "policy or gaussian" if policy.kind in _CONTINUOUS else "policy, epsilon or softmax"
        raise ArtifactError(
            f"{policy.manifest.name} cannot explore by {kind}: its actions are {policy.kind}; set "
            f"serving.exploration.kind, or --explore kind=..., to {fitting}"
        )


def require_explorable(policy: ServedPolicy, asked: Sequence[bool]) -> None:
    """Raises `Problem`, 400, where somebody asks a policy to explore that cannot."""
    if policy.kind == TEXT and any(asked):
        raise Problem(400, f"`explore` must be false for {policy.manifest.name}: {_ONLY_GREEDY}")


def explore(
    policy: ServedPolicy,
    answer: PolicyOutput,
    row: int,
    rng: np.random.Generator,
    asked: bool = True,
    fallback: Fallback = None,
) -> ExploredChoice:
    """Draw the action for one row of an answer. `fallback` gives what is taken in place of an action not allowed.

    Raises:
        NotAllowed: for a choice that is not allowed, without a fallback.
    """
    draw = _choose if policy.chooses else _reach
    return draw(policy, answer, row, rng, asked, fallback)


def probability_of(policy: ServedPolicy, answer: PolicyOutput, row: int, action: NDArray[Any]) -> float:
    """How likely one who asks to explore gets an action (*action), of a policy that chooses, without a shield."""
    start = np.ravel(policy.manifest.environment.action.get("start", 0))
    greedy = np.ravel(answer.action[row]) - start
    mixture = _mixture(policy, answer.outputs["logits"][row].astype(np.float64), greedy, asked=True)
    return _probability(mixture, np.ravel(action) - start)


# --- choices ----------------------------------------------------------------------------------------------------


def _choose(
    policy: ServedPolicy, answer: PolicyOutput, row: int, rng: np.random.Generator, asked: bool, fallback: Fallback
) -> ExploredChoice:
    greedy = (answer.action if answer.chosen is None else answer.chosen)[row]
    start = np.ravel(policy.manifest.environment.action.get("start", 0))
    mixture = _mixture(policy, answer.outputs["logits"][row].astype(np.float64), np.ravel(greedy) - start, asked)
    part = 0 if len(mixture) == 1 else _draw(np.array([weight for weight, _ in mixture]), rng)
    drawn = np.array([_draw(probabilities, rng) for probabilities in mixture[part][1]])  # counted from 0
    taken = drawn
    if answer.instead is not None:
        taken, mixture = answer.instead[row][drawn], _shielded(mixture, answer.instead[row])
    action, chosen = ((found + start).reshape(greedy.shape).astype(greedy.dtype)[()] for found in (taken, drawn))
    by = None if np.array_equal(taken, drawn) else LOOK_UP
    sample = ExploredChoice(action, _probability(mixture, taken), asked or part > 0, chosen=chosen.tolist(), by=by)
    limits = None if policy.guard is None else policy.guard.actions
    return sample if limits is None else _allowed(sample, mixture, start, limits, fallback)


def _allowed(
    sample: ExploredChoice, mixture: Mixture, start: NDArray[Any], limits: ComponentLimits, fallback: Fallback
) -> ExploredChoice:
    """The sample, or the fallback's action in its place, which then has the probability of all it stands in for."""
    low, high = limits.low - start, limits.high - start
    prevented = 1.0 - sum(weight * _within(parts, low, high) for weight, parts in mixture)
    by = limits.broken(np.asarray(sample.action)[None]).get(0)
    instead = fallback() if fallback is not None and (prevented > _ROUNDING or by is not None) else None
    if by is not None and instead is None:
        raise NotAllowed(not_allowed(sample.chosen, by))
    action: Any = sample.action if by is None else instead
    indices = np.ravel(action) - start
    own = _probability(mixture, indices) if bool(((indices >= low) & (indices <= high)).all()) else 0.0
    replaced = prevented if instead is not None and np.array_equal(instead, action) else 0.0
    taken = replace(sample, action=action, propensity=min(1.0, own + replaced))
    return taken if by is None else replace(taken, by=by, by_fallback=True)


def _mixture(policy: ServedPolicy, logits: Floats, greedy: NDArray[Any], asked: bool) -> Mixture:
    """What choices (C,) are drawn from; `greedy` counts from 0. The first part is greedy where nobody asked."""
    settings, kind = policy.exploration, kind_for(policy)
    scale = settings.temperature if kind == "softmax" else 1.0
    own = _distributions(policy, logits / scale)
    certain = [np.eye(len(one))[index] for one, index in zip(own, greedy, strict=True)]
    mixture = [(1.0, own)]
    if kind == "epsilon":
        anything = [np.full(len(one), 1.0 / len(one)) for one in own]
        mixture = [(1.0 - settings.epsilon, certain), (settings.epsilon, anything)]
    if asked:
        return mixture
    return [(1.0 - settings.share, certain)] + [(settings.share * weight, parts) for weight, parts in mixture]


def _distributions(policy: ServedPolicy, logits: Floats) -> list[Floats]:
    """The policy's own for each choice: softmax, for each component of its own; of bits, sigmoid."""
    if policy.kind == "multi_binary":
        ones = np.exp(-np.logaddexp(0.0, -logits))  # sigmoid, without overflow
        return [np.array([1.0 - one, one]) for one in ones]
    sizes = policy.manifest.environment.action["nvec"] if policy.kind == "multi_discrete" else [len(logits)]
    parts = np.split(logits, np.cumsum(np.ravel(sizes))[:-1])
    weights = [np.exp(part - part.max()) for part in parts]
    return [weight / weight.sum() for weight in weights]


def _shielded(mixture: Mixture, instead: NDArray[np.int64]) -> Mixture:
    """What is taken has the probability of all choices that it is taken for."""
    return [
        (weight, [np.bincount(instead, one, len(one)).astype(np.float64) for one in parts]) for weight, parts in mixture
    ]


def _draw(probabilities: Floats, rng: np.random.Generator) -> int:
    ends = np.cumsum(probabilities)
    return min(int(np.searchsorted(ends, rng.random() * ends[-1], side="right")), len(ends) - 1)


def _probability(mixture: Mixture, indices: NDArray[Any]) -> float:
    """Of one action: independent choices within a part, summed over the parts."""
    parts = (
        weight * math.prod(float(one[index]) for one, index in zip(found, indices, strict=True))
        for weight, found in mixture
    )
    return min(1.0, sum(parts))  # but for rounding it is at most 1


def _within(parts: list[Floats], low: Floats, high: Floats) -> float:
    """That every choice is one of low ... high."""
    places = (np.arange(len(one)) for one in parts)
    inside = ((place >= least) & (place <= most) for place, least, most in zip(places, low, high, strict=True))
    return math.prod(float(one[mask].sum()) for one, mask in zip(parts, inside, strict=True))


# --- continuous actions -----------------------------------------------------------------------------------------


def _reach(
    policy: ServedPolicy, answer: PolicyOutput, row: int, rng: np.random.Generator, asked: bool, fallback: Fallback
) -> ExploredChoice:
    greedy, share = answer.action[row], 1.0 if asked else policy.exploration.share
    normal = _normal(policy, answer, row)
    explored = asked or rng.random() < share
    if explored:
        drawn, density, clipped = normal.draw(rng, greedy)
        propensity = share * density
    else:
        drawn, propensity, clipped = greedy, 1.0 - share, False
    limits = None if policy.guard is None else policy.guard.actions
    if limits is None or limits.outside(drawn[None]) is None:
        return ExploredChoice(drawn, propensity, explored, clipped)
    refused = {"chosen": drawn.tolist(), "by": limits.broken_by(drawn)}
    if fallback is None:
        return ExploredChoice(limits.clip(drawn), propensity, explored, clipped=True, **refused)
    prevented = share * (1.0 - normal.within(limits.low, limits.high))
    if limits.outside(greedy[None]) is not None:
        prevented += 1.0 - share
    return ExploredChoice(fallback(), prevented, explored, by_fallback=True, **refused)


@dataclass(frozen=True, slots=True)
class _Normal:
    """A diagonal Gaussian over actions (D,), clipped to the bounds, or squashed into them by tanh."""

    mean: Floats
    std: Floats
    bounds: tuple[Floats, Floats] | None
    is_squashed: bool

    def draw(self, rng: np.random.Generator, like: NDArray[Any]) -> tuple[NDArray[Any], float, bool]:
        """An action (*action), the density of what was drawn, and whether it was clipped.

        Squashed: the density of the action itself.
        """
        noise = rng.standard_normal(self.mean.shape)
        sample = self.mean + self.std * noise
        log_density = float(np.sum(-0.5 * noise**2 - np.log(self.std) - 0.5 * math.log(2 * math.pi)))
        if self.is_squashed:
            sample, log_slope = self._squash(sample)
            log_density -= log_slope
        density, action = math.exp(min(log_density, _MOST)), sample.astype(like.dtype)
        if self.bounds is None:
            return action.reshape(like.shape), density, False
        inside = np.clip(action, *(bound.astype(like.dtype) for bound in self.bounds))
        clipped = not self.is_squashed and bool((inside != action).any())  # tanh leaves them by rounding alone
        return inside.reshape(like.shape), density, clipped

    def within(self, low: FloatArray, high: FloatArray) -> float:
        """That the action lies within limits (D,). What is clipped to a bound lies within a limit that is the bound."""
        ends = [low.astype(np.float64), high.astype(np.float64)]
        if self.bounds is not None:
            least, most = self.bounds
            ends = [np.where(ends[0] <= least, -np.inf, ends[0]), np.where(ends[1] >= most, np.inf, ends[1])]
        if self.is_squashed:
            ends = [self._unsquash(end) for end in ends]
        lower, upper = (((end - self.mean) / (self.std * math.sqrt(2.0))).tolist() for end in ends)
        return math.prod(0.5 * (math.erf(end) - math.erf(start)) for start, end in zip(lower, upper, strict=True))

    def _squash(self, sample: Floats) -> tuple[Floats, float]:
        """tanh to the bounds, and the logarithm of its slope: log(1 - tanh(u)^2) = 2 (log 2 - u - log(1 + e^-2u))."""
        assert self.bounds is not None, "squashed actions have finite bounds"
        low, high = self.bounds
        slopes = 2.0 * (math.log(2.0) - sample - np.logaddexp(0.0, -2.0 * sample)) + np.log((high - low) / 2)
        return low + (high - low) / 2 * (np.tanh(sample) + 1.0), float(np.sum(slopes))

    def _unsquash(self, action: Floats) -> Floats:
        assert self.bounds is not None, "squashed actions have finite bounds"
        low, high = self.bounds
        with np.errstate(divide="ignore"):
            return np.asarray(np.arctanh(np.clip(2.0 * (action - low) / (high - low) - 1.0, -1.0, 1.0)))


def _normal(policy: ServedPolicy, answer: PolicyOutput, row: int) -> _Normal:
    bounds = None
    if policy.bounds is not None:
        bounds = (policy.bounds[0].ravel(), policy.bounds[1].ravel())
    if kind_for(policy) == "gaussian":
        mean = answer.action[row].ravel().astype(np.float64)
        return _Normal(mean, np.full(mean.shape, policy.exploration.sigma), bounds, is_squashed=False)
    mean, log_std = (answer.outputs[name][row].ravel().astype(np.float64) for name in ("mean", "log_std"))
    return _Normal(mean, np.exp(log_std), bounds, policy.kind == "squashed")

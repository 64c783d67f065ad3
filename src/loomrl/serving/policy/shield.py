"""What a version must not do while it is served, whatever it would: the run-time shield.

Everything comes from the version's manifest: the bounds of its actions, those declared constraints that are enforced,
and what is certified about it. A limit on an observation, and `certified` where nothing else is to act, say that the
policy must not decide there at all. The look-up shield of a finite model is beside it, in
`loomrl.environment.finite.shield`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.quantities import absent, kind_of, place_of
from loomrl.errors import ArtifactError
from loomrl.system.files import sha256_file
from loomrl.types import Json, PolicyManifest

CERTIFIED = "certified.safetensors"
_SMALL = 64  # numbers up to which Python's own loops are faster than NumPy's
BOUNDS, UNCERTIFIED, LOOK_UP = "bounds", "not certified", "look-up"  # what prevents; "constraint NAME" does too

Floats = NDArray[np.floating[Any]]


class NotAllowed(ValueError):
    """An action, or all of a policy's, must not be taken after an observation, and nothing else is there to act."""


@dataclass(frozen=True)
class ComponentLimit:
    """One declared constraint, on one component of an observation or action: `index` is its place in the flattened
    array, `low` and `high` are infinite where there is no limit.
    """

    name: str
    index: int
    low: float
    high: float


class ComponentLimits:
    """Constraints on components of one kind, and for actions the bounds of each, asked about in a microsecond.

    `low` and `high` (D,) are the bounds, infinite where there are none.

    Raises:
        ArtifactError: when nothing satisfies all limits.
    """

    def __init__(self, limits: Sequence[ComponentLimit], low: Floats, high: Floats) -> None:
        self._limits = limits
        self.low, self.high = low.copy(), high.copy()  # (D,), in the dtype of what is asked about
        for limit in limits:
            low_end, high_end = _inwards(limit.low, limit.high, low.dtype)
            self.low[limit.index] = max(self.low[limit.index], low_end)
            self.high[limit.index] = min(self.high[limit.index], high_end)
            if self.low[limit.index] > self.high[limit.index]:
                raise ArtifactError(
                    f"{limit.name}: nothing satisfies it and the limits before it; export another policy"
                )
        self._columns = np.flatnonzero(np.isfinite(self.low) | np.isfinite(self.high))  # those with a limit
        self._ends = [(column, float(self.low[column]), float(self.high[column])) for column in self._columns.tolist()]

    def outside(self, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Which of (B, *shape) are beyond a limit, (B,); None where none is."""
        if values.size <= _SMALL:
            numbers = values.ravel().tolist()
            for column, low, high in self._ends:
                some = numbers[column :: len(self.low)]
                if not (low <= min(some) and max(some) <= high):
                    break
            else:
                if not isnan(sum(numbers)):  # `min` and `max` may pass over NaN
                    return None
        limited = values.reshape(len(values), -1)[:, self._columns]
        within = (limited >= self.low[self._columns]) & (limited <= self.high[self._columns])  # NaN is beyond
        beyond = np.asarray(~within.all(axis=1))
        return beyond if beyond.any() else None

    def broken(self, values: NDArray[Any]) -> dict[int, str]:
        """Which of (B, *shape) are beyond a limit: row -> the name of the first limit that it is beyond."""
        outside = self.outside(values)
        return {} if outside is None else {int(row): self.broken_by(values[row]) for row in np.flatnonzero(outside)}

    def broken_by(self, value: NDArray[Any]) -> str:
        """The name of the first limit that a value outside, (*shape), is beyond."""
        flat = value.ravel().tolist()
        named = (limit.name for limit in self._limits if not limit.low <= flat[limit.index] <= limit.high)
        return next(named, BOUNDS)

    def clip(self, value: NDArray[Any]) -> NDArray[Any]:
        """The nearest value (*shape) that keeps these limits."""
        return np.asarray(np.clip(value.ravel(), self.low, self.high).reshape(value.shape))


class Certified:
    """Boxes around recorded observations in which a proof says that the action stays what it is there."""

    def __init__(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        self.low, self.high = low, high  # (K, D)

    def covers(self, observations: NDArray[Any]) -> list[bool]:
        """Whether each of (B, *obs) lies in one of the boxes."""
        flat = observations.reshape(len(observations), 1, -1)  # (B, 1, D)
        within = (flat >= self.low) & (flat <= self.high)  # (B, K, D)
        return [bool(one.any()) for one in np.all(within, axis=-1)]

    def to_bytes(self) -> bytes:
        """One file of arrays; equal boxes give equal bytes."""
        from safetensors.numpy import save

        return save({"high": np.ascontiguousarray(self.high), "low": np.ascontiguousarray(self.low)})

    @classmethod
    def load(cls, path: Path, sha256: str) -> Self:
        """Read what `to_bytes` gave.

        Raises:
            ArtifactError: when it is not the file with this digest.
        """
        from safetensors.numpy import load

        if not path.is_file() or sha256_file(path) != sha256:
            raise ArtifactError(f"{path} is not what its manifest names as certified; restore or export again")
        arrays = load(path.read_bytes())
        return cls(arrays["low"], arrays["high"])


@dataclass(frozen=True)
class RuntimeShield:
    """What one version must not do. `observations` limits where it decides, `actions` what it does."""

    actions: ComponentLimits | None = None
    observations: ComponentLimits | None = None
    certified: Certified | None = None
    must_be_certified: bool = False  # else a decision is marked only

    @classmethod
    def of(
        cls,
        manifest: PolicyManifest,
        observed: tuple[tuple[int, ...], np.dtype[Any]],
        bounds: tuple[Floats, Floats] | None,
        certified: Certified | None,
    ) -> Self | None:
        """The shield a manifest asks for; None where it asks for none.

        `observed` is the shape and dtype of an observation, `bounds` (*action) are those of a continuous action.

        Raises:
            ArtifactError: when a constraint is on a component that there is not, or nothing satisfies them all.
        """
        described = manifest.outputs["action"]
        acted = (tuple(described["shape"][1:]), np.dtype(described["dtype"]))
        actions = _limits(manifest, "action", acted, bounds)
        observations = _limits(manifest, "observation", observed, None)
        if actions is None and observations is None and certified is None:
            return None
        hands_over = manifest.certified is not None and manifest.certified["on_uncertified"] == "fallback"
        return cls(actions, observations, certified, hands_over)

    def barred(self, observations: NDArray[Any], covered: Sequence[bool] | None) -> dict[int, str]:
        """After which of (B, *obs) the policy must not decide: row -> what keeps it from that.

        `covered` says after which of them the action is certified; None where nothing is.
        """
        found = {}
        if covered is not None and self.must_be_certified and not all(covered):
            found = {row: UNCERTIFIED for row, one in enumerate(covered) if not one}
        return found if self.observations is None else found | self.observations.broken(observations)

    def beyond(self, actions: NDArray[Any]) -> dict[int, str]:
        """Which of (B, *action) are not allowed: row -> what forbids it."""
        return {} if self.actions is None else self.actions.broken(actions)


def _limits(
    manifest: PolicyManifest,
    kind: str,
    shaped: tuple[tuple[int, ...], np.dtype[Any]],
    bounds: tuple[Floats, Floats] | None,
) -> ComponentLimits | None:
    """The bounds and the enforced constraints on `observation` or `action`; None where there are none."""
    size = int(np.prod(shaped[0], dtype=np.int64))
    wanted = [one for one in manifest.constraints if kind_of(one["quantity"]) == kind and _is_enforced(one)]
    limits = [_limit(one, size) for one in wanted]
    if bounds is not None:
        low, high = (bound.ravel().astype(shaped[1]) for bound in bounds)
        return ComponentLimits(limits, low, high)
    if not limits:
        return None
    ends = np.full(size, np.inf, shaped[1] if shaped[1].kind == "f" else np.float64)
    return ComponentLimits(limits, -ends, ends)


def _is_enforced(constraint: Json) -> bool:
    """Limits on actions are where nothing else is said: only they can be kept whatever the environment does."""
    enforced = constraint.get("enforce")
    return kind_of(constraint["quantity"]) == "action" if enforced is None else bool(enforced)


def _limit(constraint: Json, size: int) -> ComponentLimit:
    if problem := absent(constraint["quantity"], size):
        raise ArtifactError(f"constraint {constraint['name']}: {problem}; export the policy again")
    low, high = constraint.get("low"), constraint.get("high")
    ends = (-np.inf if low is None else low, np.inf if high is None else high)
    return ComponentLimit(f"constraint {constraint['name']}", place_of(constraint["quantity"]), *ends)


def not_allowed(chosen: Any, by: str) -> str:
    """The message for a chosen action that is not allowed, for the reason `by`, where no fallback can act instead."""
    return f"action {chosen} is not allowed ({by}), and there is no fallback to act instead"


def float_limits(
    low: NDArray[np.float64], high: NDArray[np.float64], dtype: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds (*shape) rounded inwards to numbers of another dtype: to the nearest they could let something out."""
    ends = [_inwards(float(one), float(other), dtype) for one, other in zip(low.ravel(), high.ravel(), strict=True)]
    lows, highs = (np.array([pair[end] for pair in ends], np.float64).reshape(low.shape) for end in (0, 1))
    return lows, highs


def _inwards(low: float, high: float, dtype: Any) -> tuple[Any, Any]:
    kind = np.dtype(dtype)
    near_low, near_high = kind.type(low), kind.type(high)
    if kind.kind != "f":
        return near_low, near_high
    infinity = kind.type(np.inf)
    lower = np.nextafter(near_low, infinity) if float(near_low) < low else near_low
    return lower, np.nextafter(near_high, -infinity) if float(near_high) > high else near_high

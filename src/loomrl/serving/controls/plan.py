"""A policy's plan: which versions, besides the champion, decide for a share of the agents, in shadow or in its place.

An agent's place is the hash of its id and the experiment's: one of a million points, the same on every host and after
every restart. A version owns slices of these points, the champion the rest. Raising a version's share takes points from
the champion alone, lowering it gives them back: no other agent changes hands.
"""

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from hashlib import blake2b
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field, field_validator, model_validator

from loomrl.errors import ConfigError
from loomrl.system.files import canonical_json
from loomrl.system.schema import Document

Version = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
POINTS = 1_000_000
_MAX_ACTION_BYTES = 16_384  # some orders at once must have room in the reserve
_ANSWERED_AT = 16  # levels of an answer that an action may lie below
_REMEMBERED = 100_000  # agents whose point is kept at hand


def _orderable(action: Any) -> Any:
    try:
        canonical_json(action)  # finite numbers alone
        size = len(orjson.dumps(reduce(lambda held, _: [held], range(_ANSWERED_AT), action)))  # integers of 64 bits
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"an action is JSON, with finite numbers and integers of 64 bits at most: {error}") from None
    if (size := size - 2 * _ANSWERED_AT) > _MAX_ACTION_BYTES:
        raise ValueError(f"an action is ordered in {_MAX_ACTION_BYTES} bytes of JSON at most, found {size}")
    return action


Action = Annotated[Any, AfterValidator(_orderable)]  # as it may be ordered now; what was ordered before stays readable


def check_orderable(action: Any) -> None:
    """Raise `ConfigError` for an action that files, records and answers cannot all hold, or room that is reserved."""
    try:
        _orderable(action)
    except ValueError as error:
        raise ConfigError(str(error)) from None


class Slice(Document):
    """The points from `start` up to, not including, `end`, and the version that decides for agents there."""

    version: str
    start: int
    end: int


class Fallback(Document):
    """What decides where the policy must not, or cannot: a version, or one constant action."""

    version: Version | None = None
    action: Any = None

    @model_validator(mode="after")
    def _one_thing(self) -> "Fallback":
        if (self.action is None) == (self.version is None):
            raise ValueError("a fallback is either an `action` or a `version`")
        return self


class KillSwitch(Document):
    """While it is on, the fallback decides everything that no override does."""

    person: str = Field(min_length=1, max_length=200, examples=["Ada"])
    reason: str = Field(min_length=1, max_length=1_000, examples=["sensors are being replaced"])


class KillSwitchOrder(KillSwitch):
    """The kill switch as an operator turns it."""

    on: bool

    def switch(self) -> KillSwitch:
        """What is in force while it is on."""
        return KillSwitch(person=self.person, reason=self.reason)


class Plan(Document):
    """Who decides besides the champion. `slices` follow from `split` and the former plan: see `dealt_after`."""

    split: dict[Version, float] = {}  # version -> fraction of the agents it decides for; the champion has the rest
    experiment: str | None = Field(default=None, min_length=1, max_length=128)  # another name deals all agents anew
    challengers: list[Version] = []  # decide in shadow, besides the registry's challenger
    fallback: Fallback | None = None
    person: str = Field(min_length=1, max_length=200, examples=["Ada"])
    reason: str = Field(min_length=1, max_length=1_000, examples=["a first look"])
    slices: list[Slice] = []

    @field_validator("split")
    @classmethod
    def _are_fractions(cls, split: dict[str, float]) -> dict[str, float]:
        for version, fraction in split.items():
            if not 0.0 < fraction <= 1.0 or not _points(fraction):
                raise ValueError(f"version {version!r}: a fraction is from 0.000001 to 1, found {fraction}")
        if sum(map(_points, split.values())) > POINTS:
            raise ValueError(f"the fractions add up to {sum(split.values()):g}; together they are at most 1")
        return split

    def versions(self) -> set[str]:
        """Every version that the plan names: in its split, as a challenger, or as the fallback."""
        fallback = {self.fallback.version} if self.fallback and self.fallback.version else set()
        return {*self.split, *self.challengers, *fallback}

    def dealt_after(self, former: "Plan") -> "Plan":
        """A copy of this plan with its slices, which differ from the former plan's only where the split does.

        Where it names no experiment, it is in the former's, or in a new one.
        """
        if not self.split:
            return self.model_copy(update={"experiment": None, "slices": []})
        experiment = self.experiment or former.experiment or secrets.token_hex(4)
        owned = former.slices if former.experiment == experiment else []
        slices = _dealt({version: _points(fraction) for version, fraction in self.split.items()}, owned)
        return self.model_copy(update={"experiment": experiment, "slices": slices})

    def fraction(self, version: str) -> float:
        """The exact share of the points that a version owns; 0 for one that the plan does not deal."""
        return sum(owned.end - owned.start for owned in self.slices if owned.version == version) / POINTS


class PlanOrder(Plan):
    """A plan as an operator sends it, with the `revision` it was made from: then it replaces no other."""

    revision: int | None = None

    @field_validator("fallback")
    @classmethod
    def _is_orderable(cls, fallback: Fallback | None) -> Fallback | None:
        if fallback is not None:
            _orderable(fallback.action)
        return fallback

    def plan(self) -> Plan:
        """The plan that this order puts in force."""
        return Plan(**self.model_dump(exclude={"revision"}))


NO_PLAN = Plan(person="nobody", reason="the champion decides")


class SplitAssignment:
    """Who gets which version under a plan, looked up for every decision."""

    def __init__(self, policy: str, plan: Plan) -> None:
        self._policy, self._experiment, self._slices = policy, plan.experiment or "", plan.slices
        self._starts = [owned.start for owned in plan.slices]

    def version_of(self, agent_id: str) -> str | None:
        """The version an agent is dealt; None for the champion."""
        place = point(self._policy, self._experiment, agent_id)
        index = bisect_right(self._starts, place) - 1
        return self._slices[index].version if index >= 0 and place < self._slices[index].end else None


@lru_cache(maxsize=_REMEMBERED)
def point(policy: str, experiment: str, agent_id: str) -> int:
    """An agent's point in an experiment, from 0 to `POINTS` - 1: the same for the same names, spread evenly over
    agents."""
    hashed = blake2b("\0".join((policy, experiment, agent_id)).encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "big") % POINTS


def _points(fraction: float) -> int:
    return round(fraction * POINTS)


def _dealt(wanted: Mapping[str, int], owned: Iterable[Slice]) -> list[Slice]:
    """Slices of the wanted lengths: first what each owned already, then what nobody owns."""
    slices, missing = [], dict(wanted)
    for former in owned:
        length = min(former.end - former.start, missing.get(former.version, 0))
        if length:
            slices.append(Slice(version=former.version, start=former.start, end=former.start + length))
            missing[former.version] -= length
    for first, end in _gaps(slices):
        start = first
        for version in wanted:
            length = min(end - start, missing[version])
            if length:
                slices.append(Slice(version=version, start=start, end=start + length))
                start, missing[version] = start + length, missing[version] - length
    return _joined(slices)


def _gaps(slices: Iterable[Slice]) -> list[tuple[int, int]]:
    ordered = sorted((owned.start, owned.end) for owned in slices)
    starts, ends = [0, *(end for _, end in ordered)], [*(start for start, _ in ordered), POINTS]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """In order, neighbours of one version as one."""
    joined: list[Slice] = []
    for owned in sorted(slices, key=lambda one: one.start):
        if joined and (joined[-1].version, joined[-1].end) == (owned.version, owned.start):
            owned = Slice(version=owned.version, start=joined.pop().start, end=owned.end)  # noqa: PLW2901
        joined.append(owned)
    return joined

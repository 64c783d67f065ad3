"""What is known of a version before it decides anything: its limits, its alarm, and the level of each monitor."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.quantities import kind_of, place_of
from loomrl.serving.guardian.config import MonitorsConfig
from loomrl.storage.audit.columns import Columns
from loomrl.types import Json, PolicyManifest

REWARD, SHIELD, OUT_OF_DISTRIBUTION = "reward", "shield", "out_of_distribution"
UNANSWERED, LATENCY, VIOLATIONS = "unanswered", "latency", "violations."  # VIOLATIONS is followed by a limit's name
_LEAST = 1e-3  # that a limit is away from 0 and 1
Signs = dict[str, NDArray[np.bool_]]  # by monitor, (B,) each: what speaks against a version in which of B decisions


@dataclass(frozen=True)
class WatchedLimit:
    """A limit that a decision shows: on what it observed or what it chose.

    Attributes:
        index: which component of the observation or the action, flattened.
        low: the least value that is allowed; minus infinity for none. `high` likewise.
        per_episode: whether an episode counts once, instead of each decision.
        max_probability: how often it may be broken, in (0, 1).
    """

    name: str
    kind: str  # `observation` or `action`
    index: int
    low: float
    high: float
    per_episode: bool
    max_probability: float

    @classmethod
    def read(cls, constraint: Json) -> "WatchedLimit | None":
        """The limit that an entry of a manifest's `constraints` sets; None for a quantity that decisions do not show.

        Raises:
            KeyError: where a part of the entry is missing.
        """
        if (kind := kind_of(constraint["quantity"])) not in ("observation", "action"):
            return None
        return cls(
            name=constraint["name"],
            kind=kind,
            index=place_of(constraint["quantity"]),
            low=-np.inf if constraint["low"] is None else constraint["low"],
            high=np.inf if constraint["high"] is None else constraint["high"],
            per_episode=constraint["per"] == "episode",
            max_probability=constraint["max_probability"],
        )

    @property
    def monitor(self) -> str:
        """The name of the monitor that watches this limit."""
        return f"{VIOLATIONS}{self.name}"

    def broken(self, components: NDArray[np.float64], prevented: Sequence[int]) -> NDArray[np.bool_]:
        """Which of B decisions show it, (B,), by what they observed or chose, (B, n).

        A number that is not finite (`null`) is outside. Those rows in which the shield `prevented` it count too: the
        version chose it.
        """
        values = components[:, self.index]
        broken = ~((self.low <= values) & (values <= self.high))
        broken[list(prevented)] = True
        return broken


@dataclass(frozen=True)
class Alarm:
    """The calibrated alarm of `loomrl.safety.checks.out_of_distribution`: squared Mahalanobis distance."""

    mean: NDArray[np.float64]  # (D,)
    precision: NDArray[np.float64]  # (D, D)
    threshold: float

    @classmethod
    def read(cls, calibration: Json) -> "Alarm":
        """The alarm with the mean, precision and threshold that a manifest's `out_of_distribution` names.

        Raises:
            KeyError: where one of them is missing.
        """
        mean, precision = (np.array(calibration[key], dtype=np.float64) for key in ("mean", "precision"))
        return cls(mean, precision, float(calibration["threshold"]))

    def rings(self, observations: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of B observations, (B, D), are unlike those the version was examined on; (B,)."""
        centred = observations - self.mean
        distances: NDArray[np.float64] = ((centred @ self.precision) * centred).sum(axis=1)
        return distances > self.threshold


@dataclass(frozen=True)
class Level:
    """What a monitor is held against: the mean its values, in [0, 1], may have, and the evidence that refutes it."""

    limit: float
    threshold: float  # 1 / its share of the chance of a false alarm
    block: int  # so many decisions of an agent may depend on each other


@dataclass(frozen=True)
class Watch:
    """What the monitors of one version watch: limits, the out-of-distribution alarm, and the level of each monitor."""

    limits: Sequence[WatchedLimit]
    alarm: Alarm | None
    levels: dict[str, Level]  # by monitor
    config: MonitorsConfig
    dtype: np.dtype[Any]  # of the observations
    told: Json  # what it was read from

    @classmethod
    def of(cls, manifest: PolicyManifest, dtype: np.dtype[Any], config: MonitorsConfig) -> "Watch":
        """The watch by what was signed with the version, the dtype in which it observes, and the settings in force.

        Raises:
            KeyError: where the manifest's calibration lacks a part of the alarm.
        """
        signed = {"constraints": manifest.constraints, "out_of_distribution": manifest.out_of_distribution}
        return cls.read({**signed, "dtype": dtype.name, "config": config.model_dump(mode="json")})

    @classmethod
    def read(cls, told: Json) -> "Watch":
        """The watch that another process described by its own `told`.

        Raises:
            KeyError: where a part is missing.
            ValidationError: for settings that are not valid.
        """
        limits = [limit for one in told["constraints"] if (limit := WatchedLimit.read(one)) is not None]
        calibration, config = told["out_of_distribution"], MonitorsConfig.model_validate(told["config"])
        alarm = None if calibration is None else Alarm.read(calibration)
        return cls(limits, alarm, _levels(limits, alarm, config), config, np.dtype(told["dtype"]), told)

    def signs(self, decisions: Columns) -> Signs:
        """What speaks against the version in which of B decisions, by monitor, (B,) each; nothing for one that all
        satisfy.
        """
        found = {}
        numbers = {name: self._numbers(name, decisions) for name in self._looked_at}
        marks = [(row, mark) for row, mark in enumerate(decisions.of("shield")) if mark is not None]
        for limit in self.limits:
            if limit.monitor in self.levels:
                prevented = [row for row, mark in marks if mark.get("by") == f"constraint {limit.name}"]
                found[limit.monitor] = limit.broken(numbers[limit.kind], prevented)
        if self.alarm is not None:
            found[OUT_OF_DISTRIBUTION] = self.alarm.rings(numbers["observation"])
        found[SHIELD] = np.zeros(len(decisions), bool)
        found[SHIELD][[row for row, _ in marks]] = True
        found[LATENCY] = self._is_slow(decisions)
        return {name: flags for name, flags in found.items() if flags.any()}

    def _is_slow(self, decisions: Columns) -> NDArray[np.bool_]:
        """Which of B decisions took too long, (B,); those of a large request may take longer together."""
        seconds: NDArray[np.float64] = decisions.array("seconds")
        is_slow = seconds > self.config.max_latency_seconds
        if is_slow.any():
            is_slow = seconds > self.config.max_latency_seconds * decisions.times_allowed()
        return is_slow

    def _numbers(self, name: str, decisions: Columns) -> NDArray[np.float64]:
        """Observations or actions of B decisions, (B, n), `null` as NaN.

        Observations are what the graph saw: a record of one decision holds them in the fewest digits, one of several
        their bytes, and limits were examined on those.
        """
        values = decisions.array(name)
        values = values.astype(self.dtype) if name == "observation" else values
        return values.astype(np.float64).reshape(len(values), -1)

    @property
    def shown(self) -> list[str]:
        """The names of the monitors whose values come from decisions, and not from feedback."""
        names = [*(one.monitor for one in self.limits), SHIELD, LATENCY, OUT_OF_DISTRIBUTION]
        return [name for name in dict.fromkeys(names) if name in self.levels]

    @cached_property
    def _looked_at(self) -> set[str]:
        """What has to be read of a decision: `observation`, `action`."""
        kinds: set[str] = {one.kind for one in self.limits if one.monitor in self.levels}
        return kinds if self.alarm is None else kinds | {"observation"}


def _levels(limits: Sequence[WatchedLimit], alarm: Alarm | None, config: MonitorsConfig) -> dict[str, Level]:
    """The chance of a false alarm is shared out by weight among the monitors this version can have."""
    weights = config.weights
    wanted = {one.monitor: (one.max_probability, weights.violations / len(limits)) for one in limits}
    wanted[SHIELD] = (config.max_shield_rate, weights.shield)
    wanted[REWARD] = (_reward_limit(config), weights.reward)
    wanted[UNANSWERED] = (config.max_unanswered_rate, weights.unanswered)
    wanted[LATENCY] = (config.max_slow_rate, weights.latency)
    if alarm is not None:
        wanted[OUT_OF_DISTRIBUTION] = (config.max_out_of_distribution_rate, weights.out_of_distribution)
    total = (1.0 - config.confidence) / (sum(weight for _, weight in wanted.values()) or 1.0)
    blocks = {OUT_OF_DISTRIBUTION: config.out_of_distribution_spacing}
    return {
        name: Level(limit, 1.0 / (total * weight), blocks.get(name, config.spacing))
        for name, (limit, weight) in wanted.items()
        if weight > 0
    }


def _reward_limit(config: MonitorsConfig) -> float:
    """Of what is missing of the range's end below the reference; without one, of (1 + how much worse) / 2 in pairs."""
    if config.reference is None or config.reward_range is None:
        return (1.0 + config.max_reward_loss) / 2.0
    low, high = config.reward_range
    return min(max((high - config.reference) / (high - low) + config.max_reward_loss, _LEAST), 1.0 - _LEAST)

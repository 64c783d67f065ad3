"""What is known of a version before it decides anything: its limits, its alarm, and the level of each monitor."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loomrl.monitoring.config import MonitorsConfig
from loomrl.types import Json, PolicyManifest

REWARD, SHIELD, OUT_OF_DISTRIBUTION = "reward", "shield", "out_of_distribution"
UNANSWERED, LATENCY, VIOLATIONS = "unanswered", "latency", "violations."  # VIOLATIONS is followed by a limit's name
_COMPONENT = re.compile(r"^(observation|action)(?:\[(\d+)\])?$")


@dataclass(frozen=True)
class Limit:
    """A limit that a decision shows: on what it observed or what it chose."""

    name: str
    kind: Literal["observation", "action"]
    index: int
    low: float
    high: float
    per_episode: bool
    max_probability: float

    @classmethod
    def read(cls, constraint: Json) -> "Limit | None":
        """From a manifest's `constraints`; None for a quantity that decisions do not show."""
        found = _COMPONENT.match(constraint["quantity"])
        if found is None:
            return None
        return cls(
            name=constraint["name"],
            kind="action" if found.group(1) == "action" else "observation",
            index=int(found.group(2) or 0),
            low=-np.inf if constraint["low"] is None else constraint["low"],
            high=np.inf if constraint["high"] is None else constraint["high"],
            per_episode=constraint["per"] == "episode",
            max_probability=constraint["max_probability"],
        )

    @property
    def monitor(self) -> str:
        """The name of its monitor."""
        return f"{VIOLATIONS}{self.name}"

    def is_broken(self, decision: Json) -> bool:
        """Whether a decision's record shows it; a number that is not finite (`null`) is outside.

        What the shield had to prevent counts too: the version chose it.
        """
        if decision["shield"] is not None and decision["shield"].get("by") == f"constraint {self.name}":
            return True
        value = _component(decision[self.kind], self.index)
        return value is None or not self.low <= value <= self.high


@dataclass(frozen=True)
class Alarm:
    """The calibrated alarm of `loomrl.safety.checks.out_of_distribution`: squared Mahalanobis distance."""

    mean: NDArray[np.float64]  # (D,)
    precision: NDArray[np.float64]  # (D, D)
    threshold: float

    @classmethod
    def read(cls, calibration: Json) -> "Alarm":
        """From a manifest's `out_of_distribution`."""
        mean, precision = (np.array(calibration[key], dtype=np.float64) for key in ("mean", "precision"))
        return cls(mean, precision, float(calibration["threshold"]))

    def rings(self, observation: Any) -> bool:
        """Whether an observation, of any shape, is unlike those the version was examined on."""
        centred = np.asarray(observation, dtype=np.float64).reshape(-1) - self.mean
        return bool(centred @ self.precision @ centred > self.threshold)


@dataclass(frozen=True)
class Level:
    """What a monitor is held against: the mean its values, in [0, 1], may have, and the evidence that refutes it."""

    limit: float
    threshold: float  # 1 / its share of the chance of a false alarm


@dataclass(frozen=True)
class Watch:
    """All of it for one version."""

    limits: Sequence[Limit]
    alarm: Alarm | None
    levels: dict[str, Level]  # by monitor
    config: MonitorsConfig

    @classmethod
    def of(cls, manifest: PolicyManifest, config: MonitorsConfig) -> "Watch":
        """From what was signed with the version, and the settings in force."""
        limits = [limit for one in manifest.constraints if (limit := Limit.read(one)) is not None]
        calibration = manifest.out_of_distribution
        alarm = None if calibration is None else Alarm.read(calibration)
        return cls(limits, alarm, _levels(limits, alarm, config), config)

    def shows(self) -> dict[str, Callable[[Json], bool]]:
        """What tells, for each monitor of decisions, whether one speaks against its version."""
        shows: dict[str, Callable[[Json], bool]] = {one.monitor: one.is_broken for one in self.limits}
        shows[SHIELD] = lambda decision: decision["shield"] is not None
        shows[UNANSWERED] = lambda decision: False
        shows[LATENCY] = lambda decision: decision["seconds"] > self.config.max_latency_seconds
        if (alarm := self.alarm) is not None:
            shows[OUT_OF_DISTRIBUTION] = lambda decision: alarm.rings(decision["observation"])
        return {name: tells for name, tells in shows.items() if name in self.levels}

    def spacing(self, monitor: str) -> int:
        """Of so many decisions of a named episode one gives this monitor a value."""
        config = self.config
        return config.out_of_distribution_spacing if monitor == OUT_OF_DISTRIBUTION else config.spacing


def _levels(limits: Sequence[Limit], alarm: Alarm | None, config: MonitorsConfig) -> dict[str, Level]:
    """The chance of a false alarm is shared out by weight among the monitors this version can have."""
    weights = config.weights
    wanted = {one.monitor: (one.max_probability, weights.violations / len(limits)) for one in limits}
    wanted[SHIELD] = (config.max_shield_rate, weights.shield)
    wanted[REWARD] = ((1.0 + config.max_reward_loss) / 2.0, weights.reward)
    wanted[UNANSWERED] = (config.max_unanswered_rate, weights.unanswered)
    wanted[LATENCY] = (config.max_slow_rate, weights.latency)
    if alarm is not None:
        wanted[OUT_OF_DISTRIBUTION] = (config.max_out_of_distribution_rate, weights.out_of_distribution)
    total = (1.0 - config.confidence) / (sum(weight for _, weight in wanted.values()) or 1.0)
    return {name: Level(limit, 1.0 / (total * weight)) for name, (limit, weight) in wanted.items() if weight > 0}


def _component(values: Any, index: int) -> Any:
    """A number of an observation or action as the log keeps it: one number, a list, or lists of lists."""
    if not isinstance(values, list):
        return values
    return np.array(values, dtype=np.float64).reshape(-1)[index] if isinstance(values[0], list) else values[index]

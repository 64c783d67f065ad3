"""Which environment a policy is for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from loomrl.environment.backends import TIMEOUT_SECONDS, BackendName
from loomrl.system.schema import Section

if TYPE_CHECKING:
    import numpy as np  # a config is read before a stage has said on how many threads NumPy may compute


# What a limit may be on, of those quantities that are known after each step.
STEP_QUANTITY = r"observation\[\d+\]|action(\[\d+\])?|cost|info\.[A-Za-z_][A-Za-z0-9_.]*"


class RangeConfig(Section):
    """What a parameter of the environment's constructor may be: a number from [low, high], whole ones where `whole`.

    `held_out` is a range training never meets, on which the gate examines the policy.
    """

    low: float
    high: float
    whole: bool = False
    held_out: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "RangeConfig":
        ranges = [(self.low, self.high)] + ([] if self.held_out is None else [self.held_out])
        for low, high in ranges:
            if not low <= high:
                raise ValueError(f"low {low:g} is above high {high:g}")
            if self.whole and (low != int(low) or high != int(high)):
                raise ValueError(f"`whole: true` needs whole limits, found {low:g} and {high:g}")
        if self.held_out is not None and self.held_out[0] < self.high and self.low < self.held_out[1]:
            raise ValueError(
                f"held_out {list(self.held_out)} overlaps [{self.low:g}, {self.high:g}], which training meets"
            )
        return self

    @property
    def middle(self) -> float | int:
        """The middle of the range; rounded towards zero where the values are whole numbers."""
        middle = (self.low + self.high) / 2
        return int(middle) if self.whole else middle

    def draw(self, rng: "np.random.Generator") -> float | int:
        """A value drawn uniformly from the range: from low to high, both included, where values are whole numbers."""
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        return float(rng.uniform(self.low, self.high))

    def moved_out(self) -> "RangeConfig":
        """The held-out range in place of training's; itself where there is none."""
        if self.held_out is None:
            return self
        low, high = self.held_out
        return self.model_copy(update={"low": low, "high": high, "held_out": None})


class ShieldConfig(Section):
    """Actions after which the environment can no longer be kept from a state that is `unsafe` are replaced.

    `unsafe` is a condition on the states of the finite model, in the PRISM language. Where no action is safe for ever,
    those within (1 + `tolerance`) times the least risk are allowed.
    """

    unsafe: str
    tolerance: float = Field(default=0.0, ge=0.0)


class BoundaryConfig(Section):
    """Where a quantity is to stay while a policy is trained.

    `quantity` is `observation[i]`, `action[i]`, `action`, `cost` or `info.KEY`. A step at a limit or beyond it costs
    `penalty` of its reward. The penalty grows linearly from 0, `margin` inside the limit. With `terminate` the episode
    ends as soon as the quantity is outside.
    """

    quantity: str = Field(pattern=rf"^({STEP_QUANTITY})$")
    low: float | None = None
    high: float | None = None
    margin: float = Field(default=0.0, ge=0.0)
    penalty: float = Field(default=0.0, ge=0.0)
    terminate: bool = False

    @model_validator(mode="after")
    def _does_something(self) -> "BoundaryConfig":
        if self.low is None and self.high is None:
            raise ValueError("needs `low`, `high` or both")
        if self.penalty == 0.0 and not self.terminate:
            raise ValueError("does nothing; give it a `penalty` above 0, `terminate: true` or both")
        if self.penalty == 0.0 and self.margin > 0.0:
            raise ValueError(f"margin {self.margin:g} is where a penalty begins, and `penalty` is 0; leave it out")
        return self

    @model_validator(mode="after")
    def _has_an_inside(self) -> "BoundaryConfig":
        if self.low is None or self.high is None:
            return self
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if 2 * self.margin > self.high - self.low:
            raise ValueError(
                f"margin {self.margin:g} leaves nothing without a penalty between {self.low:g} and {self.high:g}; "
                f"let it be at most {(self.high - self.low) / 2:g}"
            )
        return self

    def is_left(self, value: float) -> bool:
        """Whether a value is outside. NaN is: what is not known cannot be said to stay inside."""
        return not self._depth(value) >= 0.0

    def penalty_at(self, value: float) -> float:
        """What is taken off the reward of a step with this value: from 0, well inside, to `penalty`, at a limit, beyond
        it and for NaN."""
        depth = self._depth(value)
        if not depth > 0.0:
            return self.penalty
        return 0.0 if depth >= self.margin else self.penalty * (1.0 - depth / self.margin)

    def _depth(self, value: float) -> float:
        """How far inside the nearer limit; NaN of NaN."""
        depths = [] if self.low is None else [value - self.low]
        return min(depths if self.high is None else [*depths, self.high - value])


@dataclass(frozen=True)
class EpisodeBounds:
    """What training adds to an environment, and nobody else: see `loomrl.environment.wrappers.bounded`."""

    boundaries: Sequence[BoundaryConfig] = ()
    max_episode_cost: float | None = None  # an episode that has cost more is terminated; None: none is

    @property
    def need_costs(self) -> bool:
        """Whether these bounds can only be kept where steps report `info["cost"]`."""
        return self.max_episode_cost is not None or any(one.quantity == "cost" for one in self.boundaries)


class EnvironmentConfig(Section):
    """`id` is a Gymnasium id, or a name registered in LoomDB (then `version` picks one, else the newest)."""

    id: str
    version: str | None = None
    entry_point: str | None = None  # "module:Class": an environment registered nowhere
    path: Path | None = None  # folder with the user's code, relative to the project; put on sys.path
    kwargs: dict[str, object] = Field(default_factory=dict)  # for the environment's constructor
    max_episode_steps: int | None = Field(default=None, ge=1)  # None: as registered
    reward_threshold: float | None = None  # the return from which an episode is a success; None: as registered
    frame_stack: int = Field(default=1, ge=1)  # observe the last so many observations
    randomize: dict[str, RangeConfig] = Field(default_factory=dict)  # parameters drawn anew for each episode
    shield: ShieldConfig | None = None  # needs a finite model
    fingerprint_episodes: int = Field(default=8, ge=1)  # recorded in the snapshot
    backend: BackendName = "auto"  # how many of them are stepped at once; see docs/environments.md
    timeout_seconds: float = Field(default=TIMEOUT_SECONDS, gt=0)  # for one answer, with the back-end "processes"
    fingerprint_steps: int = Field(default=200, ge=1)  # at most, of each of those episodes

    @model_validator(mode="after")
    def _one_value_each(self) -> "EnvironmentConfig":
        if twice := sorted(self.randomize.keys() & self.kwargs.keys()):
            raise ValueError(f"{twice[0]} stands in both kwargs and randomize; keep one of them")
        if self.shield is not None and (self.randomize or self.frame_stack > 1):
            raise ValueError("shield is of one model that knows no past: leave out randomize and frame_stack")
        return self

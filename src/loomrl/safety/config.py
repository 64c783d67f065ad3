"""What a policy must satisfy before it may be exported."""

from datetime import date
from typing import Any, Literal

from pydantic import Field, model_validator

from loomrl.environment.config import STEP_QUANTITY
from loomrl.environment.seeds import SAFETY_SEEDS
from loomrl.system.schema import Section, demand_distinct

EPISODE_QUANTITIES = ("return", "episode_cost", "length")  # known when an episode has ended


SEARCHES = ("recovery", "lone_choices")  # of the check falsification, whose claims bear these names


class ConstraintConfig(Section):
    """A limit on one quantity, per step or per episode.

    `quantity` is `observation[i]`, `action[i]`, `action`, `reward`, `cost`, `return` and `episode_cost`, their sums
    over an episode, `length` or `info.KEY`. A step violates when the quantity leaves [low, high]; an episode violates
    when any of its steps does. Per episode, `P(episode violates) <= max_probability` is tested; per step, the rate of
    violating steps.

    With `enforce` the policy server lets nothing outside happen: no such action is taken, after no such observation
    does the policy decide. Limits on actions are enforced unless it is false, those on observations only if it is true.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    quantity: str = Field(pattern=rf"^({STEP_QUANTITY}|reward|return|episode_cost|length)$")
    low: float | None = None
    high: float | None = None
    per: Literal["episode", "step"] = "episode"
    max_probability: float = Field(default=0.01, gt=0, lt=1)
    mandatory: bool = True
    enforce: bool | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "ConstraintConfig":
        if self.low is None and self.high is None:
            raise ValueError("needs `low`, `high` or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        if self.per == "step" and self.quantity in EPISODE_QUANTITIES:
            raise ValueError(f"{self.quantity} is known once per episode; set `per: episode`")
        if self.enforce and not self.quantity.startswith(("action", "observation")):
            raise ValueError(f"{self.quantity} is known after a step, too late to enforce a limit; leave `enforce` out")
        return self


class WaiverConfig(Section):
    """A named person accepts an unmet claim, by its id, until a date: `expires` is the last day on which that counts.
    Not allowed where `safety_critical: true`."""

    claim: str
    person: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    expires: date


class SafetyConfig(Section):
    """What the safety gate examines, and how. `checks` configures single checks by name; every check found runs unless
    disabled there.

    `num_episodes` episodes are played for all checks together, from reset seed `first_seed` on, in `num_envs`
    environments at once. `confidence` is that of each claim. With `safety_critical` there are no waivers, and local
    checks that are mandatory by default cannot be switched off.
    """

    safety_critical: bool = False
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    num_episodes: int = Field(default=384, ge=1)
    first_seed: int = Field(default=SAFETY_SEEDS.start, ge=0)
    num_envs: int = Field(default=192, ge=1)
    constraints: list[ConstraintConfig] = Field(default_factory=list)
    checks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    waivers: list[WaiverConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> "SafetyConfig":
        demand_distinct(self.constraints, "constraints")
        search = self.checks.get("falsification", {})
        drifts = search.get("magnitude") is not None and search.get("enabled", True)
        if taken := [one.name for one in self.constraints if drifts and one.name in SEARCHES]:
            raise ValueError(
                f"constraints: the claim falsification.{taken[0]} is that of a search; give the limit another name"
            )
        if self.safety_critical and self.waivers:
            raise ValueError("`safety_critical: true` allows no waivers")
        if self._max_episodes is not None and self._max_episodes <= self.num_episodes:
            raise ValueError(
                f"checks.statistical_limits.max_episodes: found {self._max_episodes}, but {self.num_episodes} episodes "
                "are played anyway (num_episodes); raise it above that or remove it"
            )
        return self

    @property
    def seeds(self) -> range:
        """Reset seeds of the safety episodes; `disturbed_return` plays some of them again under noise."""
        return range(self.first_seed, self.first_seed + self.num_episodes)

    @property
    def own_seeds(self) -> range:
        """The reset seeds of the safety episodes, and the ones after them with which `statistical_limits` may play on:
        nobody else's."""
        return range(self.first_seed, self.first_seed + max(self.num_episodes, self._max_episodes or 0))

    @property
    def _max_episodes(self) -> int | None:
        """What the check that plays on was given, None where that is no number: its own config refuses it then."""
        given = self.checks.get("statistical_limits", {}).get("max_episodes")
        return given if isinstance(given, int) else None

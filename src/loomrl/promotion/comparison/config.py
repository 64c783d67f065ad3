"""What two versions in production are compared by."""

import warnings

from pydantic import Field, model_validator

from loomrl.system.schema import Section


class ComparisonConfig(Section):
    """Values outside of their range count as its end. Without `return_range` it is that of the champion's evaluation
    episodes and 0; without `cost_range` costs are not compared.

    Of an episode that has not ended the return may still become anything in its range; `reward_range`, of one step,
    narrows that down where the environment has a greatest number of steps. With `longest_episode_seconds` an episode
    is given up when it has not ended twice as long after it began: it counts with what was known of it then.
    Promotion allows the return to be lower by `promotion.max_regression` or `max_regression_fraction`.
    """

    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of all differences together, at every look
    explored: bool = False  # compare the episodes whose agents asked to explore instead of the others
    champion_episodes: int = Field(default=1, ge=1)  # without a meaning: the split's shares are on record
    return_range: tuple[float, float] | None = None
    cost_range: tuple[float, float] | None = None
    # Left out where they are None, so that decisions from before there were such settings keep their digest.
    reward_range: tuple[float, float] | None = Field(default=None, exclude_if=lambda span: span is None)
    longest_episode_seconds: float | None = Field(default=None, gt=0, exclude_if=lambda seconds: seconds is None)
    max_cost_increase: float = Field(default=0.0, ge=0)
    max_rate_increase: float = Field(default=0.05, ge=0, le=1)  # of the episodes, or steps, that break a limit

    @model_validator(mode="after")
    def _ordered(self) -> "ComparisonConfig":
        for name in ("return_range", "cost_range", "reward_range"):
            span = getattr(self, name)
            if span is not None and span[0] >= span[1]:
                raise ValueError(f"{name} {list(span)} must go from the least to the greatest")
        if self.champion_episodes != 1:
            warnings.warn(
                "promotion.comparison.champion_episodes has no meaning any more: agents are compared, with the shares "
                "the split had; take it out",
                stacklevel=2,
            )
        return self

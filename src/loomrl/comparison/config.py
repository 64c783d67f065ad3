"""What two versions in production are compared by."""

from pydantic import Field, model_validator

from loomrl.schema import Section


class ComparisonConfig(Section):
    """Values outside of their range count as its end. Without `return_range` it is that of the champion's evaluation
    episodes and 0; without `cost_range` costs are not compared.

    Where the champion gets more traffic, `champion_episodes` of its episodes stand beside each of the challenger's: set
    it to the ratio of their shares. Promotion allows the return to be lower by `promotion.max_regression` or
    `max_regression_fraction`.
    """

    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of all differences together, at every look
    explored: bool = False  # compare the episodes that were explored from beginning to end instead of the others
    champion_episodes: int = Field(default=1, ge=1)
    return_range: tuple[float, float] | None = None
    cost_range: tuple[float, float] | None = None
    max_cost_increase: float = Field(default=0.0, ge=0)
    max_rate_increase: float = Field(default=0.05, ge=0, le=1)  # of the episodes, or steps, that break a limit

    @model_validator(mode="after")
    def _ordered(self) -> "ComparisonConfig":
        for name, span in (("return_range", self.return_range), ("cost_range", self.cost_range)):
            if span is not None and span[0] >= span[1]:
                raise ValueError(f"{name} {list(span)} must go from the least to the greatest")
        return self

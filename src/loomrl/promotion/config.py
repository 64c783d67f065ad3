"""Which rules a challenger must meet to become champion."""

from typing import Literal

from pydantic import Field, model_validator

from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.system.schema import Section


class PromotionConfig(Section):
    """How much lower than the champion's the paired mean return may be: the larger of `max_regression`, in units of
    return, and `max_regression_fraction` of the champion's absolute mean return. Both 0 demand that the challenger is
    shown to be at least as good, which noise denies to most equals. With `return_range`, the least and the greatest
    return of an episode, the comparison is exact for returns of any distribution; it takes more episodes.

    With `comparison` the two must have been compared live, with `off_policy` by the champion's logged decisions.
    """

    require_not_worse: bool = True  # false: the comparison is shown, and refuses nothing
    max_regression: float = Field(default=0.0, ge=0)
    max_regression_fraction: float = Field(default=0.05, ge=0, lt=1)
    min_pairs: int = Field(default=30, ge=2)  # episodes on the champion's seeds below which nothing is compared
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    min_success_rate: float | None = Field(default=None, ge=0, le=1)
    approval: Literal["none", "human"] = "none"
    approval_timeout_seconds: float = Field(default=86_400.0, gt=0)
    # Left out where they are None, so that decisions from before there were such rules keep their digest.
    return_range: tuple[float, float] | None = Field(default=None, exclude_if=lambda span: span is None)
    comparison: ComparisonConfig | None = Field(default=None, exclude_if=lambda rule: rule is None)
    off_policy: OffPolicyConfig | None = Field(default=None, exclude_if=lambda rule: rule is None)

    @model_validator(mode="after")
    def _ordered(self) -> "PromotionConfig":
        if self.return_range is not None and self.return_range[0] >= self.return_range[1]:
            raise ValueError(f"return_range {list(self.return_range)} must go from the least to the greatest")
        return self

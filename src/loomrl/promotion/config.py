"""Which rules a challenger must meet to become champion."""

from typing import Literal

from pydantic import Field

from loomrl.schema import Section


class PromotionConfig(Section):
    """`max_regression` is how much lower than the champion's the paired mean return may be."""

    require_not_worse: bool = True
    max_regression: float = Field(default=0.0, ge=0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    min_success_rate: float | None = Field(default=None, ge=0, le=1)
    approval: Literal["none", "human"] = "none"
    approval_timeout_seconds: float = Field(default=86_400.0, gt=0)

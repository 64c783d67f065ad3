"""When a look at production says something."""

from pydantic import Field

from loomrl.schema import Section


class MonitoringConfig(Section):
    """What is judged stands elsewhere: `safety.constraints`, and `promotion.max_regression` for the return."""

    min_episodes: int = Field(default=20, ge=2)  # fewer are left to the next look
    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of all looks at a version, over all claims together

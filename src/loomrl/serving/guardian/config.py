"""When a look at production says something, and when the server takes a version back by itself."""

from pydantic import Field, model_validator

from loomrl.system.schema import Section


class MonitoringConfig(Section):
    """How much a look at production must have seen, and how sure it must be, before it says something.

    What is judged stands elsewhere: `safety.constraints`, and `promotion.max_regression` for the return.
    """

    min_episodes: int = Field(default=20, ge=2)  # fewer are left to the next look
    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of all looks at a version, over all claims together


class MonitorWeights(Section):
    """How the chance of a false alarm is shared out, in parts of the whole; 0 switches a monitor off.

    A version without a calibrated alarm or without limits gives their parts to the others.
    """

    violations: float = Field(default=3.0, ge=0)  # over all limits together
    reward: float = Field(default=3.0, ge=0)
    shield: float = Field(default=1.0, ge=0)
    out_of_distribution: float = Field(default=1.0, ge=0)
    unanswered: float = Field(default=1.0, ge=0)
    latency: float = Field(default=1.0, ge=0)


class MonitorsConfig(Section):
    """What the policy server holds an acting version to, decision by decision; see `loomrl.serving.guardian.stream`.

    Limits on observations and actions are the `safety.constraints` the version was examined by, and the alarm for
    unknown observations is the one calibrated then.
    """

    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # that a version that keeps all this is never taken back
    spacing: int = Field(default=20, ge=1)  # so many decisions of an agent are one block: they may be alike
    out_of_distribution_spacing: int = Field(default=100, ge=1)  # the same for that alarm; beginnings are rare in it
    max_shield_rate: float = Field(default=0.2, gt=0, lt=1)  # decisions in which the shield took another action
    max_out_of_distribution_rate: float = Field(default=0.1, gt=0, lt=1)  # what the gate examines the alarm by
    max_unanswered_rate: float = Field(default=0.01, gt=0, lt=1)  # requests the policy had no finite answer to
    max_latency_seconds: float = Field(default=0.1, gt=0)  # of the server's own time; the shadow stage's limit too
    max_slow_rate: float = Field(default=0.05, gt=0, lt=1)  # decisions above it
    max_reward_loss: float = Field(default=0.05, ge=0, lt=1)  # below the control's mean, in parts of the range seen
    reference: float | None = None  # mean reward where no other version acted before; needs `reward_range`
    reward_range: tuple[float, float] | None = None  # of an episode's return, or of a decision without episode
    weights: MonitorWeights = Field(default_factory=MonitorWeights)

    @model_validator(mode="after")
    def _consistent(self) -> "MonitorsConfig":
        if self.reference is not None and self.reward_range is None:
            raise ValueError("`reference` needs `reward_range: [lowest, highest]`")
        if self.reward_range is not None and self.reward_range[0] >= self.reward_range[1]:
            raise ValueError(f"reward_range: {self.reward_range[0]} is not below {self.reward_range[1]}")
        return self

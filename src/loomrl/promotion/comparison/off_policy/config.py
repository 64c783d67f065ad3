"""What an estimate from logged decisions is made with, and when it is refused."""

from typing import Literal

from pydantic import Field, model_validator

from loomrl.system.schema import Section


class OffPolicyConfig(Section):
    """`acting` is how the challenger is taken to decide: by its `greedy` choice, or `sampled` from its own
    distribution as the champion's explored decisions were.

    An estimate is about the agents in the log, each with as many episodes as it has there; `units: agents` makes its
    bounds hold for other agents of the same kind, too, of which those in the log are a sample: each counts once, with
    its mean. That takes many agents.

    `reward_range` holds every reward there can be; without it, the least and the greatest in the log are taken for
    that. `max_steps` is the length of the longest episode there can be; without it, that of the longest in the log is.
    `min_propensity` is the least probability that exploration gives any action, such as epsilon / actions: only
    where it is known can self-normalised and doubly robust estimates have a bound.
    """

    acting: Literal["greedy", "sampled"] = "greedy"
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    min_improvement: float = 0.0  # in units of an episode's return, over the champion acting in the same way
    min_effective_sample_size: float = Field(default=50.0, ge=1)
    max_left_out_share: float = Field(default=0.1, ge=0, lt=1)  # of episodes whose end is not known
    units: Literal["episodes", "agents"] = "episodes"
    max_steps: int | None = Field(default=None, ge=1)
    reward_range: tuple[float, float] | None = None
    min_propensity: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> "OffPolicyConfig":
        if self.reward_range is not None and self.reward_range[0] >= self.reward_range[1]:
            raise ValueError(f"reward_range {list(self.reward_range)} must go from the least reward to the greatest")
        return self

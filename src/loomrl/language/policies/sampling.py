"""How tokens are drawn, and what was drawn: the words that policies and inference engines have in common."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from loomrl.system.schema import Section

MASKED, NO_LOG_PROB = -100, 1.0  # of a token that was read and not drawn, as the Trajectory API has them
FinishReason = Literal["stop", "length", "abort"]
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-4, 1e4  # beyond them log-probabilities are no numbers in 32 bits


def _computable(temperature: float) -> float:
    if 0.0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"a temperature is 0 or at least {LOWEST_TEMPERATURE}")
    return temperature


Temperature = Annotated[float, Field(ge=0.0, le=HIGHEST_TEMPERATURE), AfterValidator(_computable)]


class SamplingConfig(Section):
    """How tokens are drawn: at a temperature, 0 being the likeliest token, from the `top_k` likeliest tokens, or from
    the fewest that have a probability of `top_p` together. An answer ends after the policy's end token, unless that is
    ignored, after one of `stop_token_ids`, or after `max_tokens`."""

    max_tokens: int = Field(default=16, ge=1)
    temperature: Temperature = 1.0
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class TokenCompletion:
    """One answer: its tokens, and for each its log-probability at the temperature (greedy: at 1), before `top_k` and
    `top_p` cut anything off. Its last token is the one that ended it, where `finish_reason` is "stop"."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason

"""Completions as what trainers learn from: tokens, masks, log-probabilities and the policy's version.

The conventions are those of the Trajectory API: a mask is -100 on the prompt and the token's id elsewhere, a
log-probability is 1.0 where it is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from loomrl.errors import ConfigError
from loomrl.language.policies.sampling import MASKED, NO_LOG_PROB

if TYPE_CHECKING:
    from loomrl.language.inference.engine import Completions


class GymState(Protocol):
    """A state of LoomRL Gym as rollouts need it, see `loomrl.gym.facade.TaskState`."""

    @property
    def text(self) -> str:
        """The prompt to answer: the environment's latest message, as plain text."""
        ...


EnvironmentState = GymState | str


@dataclass(frozen=True)
class Rollout:
    """One message for one state: send `text` to the environment, and what it earns with the tokens to a trainer.

    `token_ids` are those of the prompt and the message. For each, `mask` is -100 in the prompt and the id itself in the
    message, `log_probs` 1.0 in the prompt and else the log-probability at `temperature` (greedy: at 1).
    `finish_reason` is "stop", "length" or "abort", `version` that of the policy that made it.
    """

    state: EnvironmentState
    text: str
    token_ids: list[int]
    mask: list[int]
    log_probs: list[float]
    temperature: float
    finish_reason: str
    version: int


def rollouts_of(
    states: Sequence[EnvironmentState], answers: Sequence["Completions"], temperature: float
) -> list[Rollout]:
    """A rollout of each completion of each state, all drawn at one temperature: those of the first state, then those
    of the next. Raises ValueError where there are not as many answers as states."""
    return [
        Rollout(
            state,
            one.text,
            answer.prompt_token_ids + one.token_ids,
            [MASKED] * len(answer.prompt_token_ids) + one.token_ids,
            [NO_LOG_PROB] * len(answer.prompt_token_ids) + one.log_probs,
            temperature,
            one.finish_reason,
            one.version,
        )
        for state, answer in zip(states, answers, strict=True)
        for one in answer.completions
    ]


def scored_group(rollouts: Sequence[Rollout], scores: Sequence[float]) -> dict[str, Any]:
    """A group of the Trajectory API, as `loomrl.language.trajectory.wire.ScoredGroup` describes it, of rollouts for one
    state and a score for each. Post it with the policy version they have in common.

    Raises:
        ConfigError: when there are not as many scores, or policies of several versions made them.
    """
    if len(scores) != len(rollouts):
        raise ConfigError(f"{len(rollouts)} rollouts have {len(scores)} scores; give one for each")
    if len(versions := {one.version for one in rollouts}) > 1:
        raise ConfigError(f"policies of the versions {sorted(versions)} made this group; generate it in one call")
    return {
        "tokens": [one.token_ids for one in rollouts],
        "masks": [one.mask for one in rollouts],
        "scores": list(scores),
        "inference_logprobs": [one.log_probs for one in rollouts],
        "overrides": [{"temperature": one.temperature} for one in rollouts],
    }

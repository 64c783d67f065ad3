"""Scored answers to one prompt, as token trajectories: what learning needs of a group of the Trajectory API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loomrl.errors import ArtifactError
from loomrl.language.policies.model import ModelConfig
from loomrl.language.policies.sampling import (
    HIGHEST_TEMPERATURE,
    LOWEST_TEMPERATURE,
    MASKED,
    NO_LOG_PROB,
    TokenCompletion,
)

_HIGHEST_LOG_PROB = 1e-3  # of a token that was drawn: 0, and what rounding adds
_LARGEST_WORTH = 1e9  # of scores and advantages: their squares are still numbers in 32 bits


@dataclass(frozen=True)
class TokenGroup:
    """Samples that answer one prompt, with a score for each; lists of lists go by sample, then by token.

    `tokens` are ids of prompt and answer, and `loss_mask` is true for those that are learnt. `log_probs` are those of
    the policy that drew the tokens, at `temperatures`, and mean nothing where `loss_mask` is false; None where nobody
    recorded them. `policy_version` is that policy's, None where it is not known. `temperatures` None are 1.
    `advantages` are there where an environment made its own. A sample whose `counted` is false has advantage 0; None
    counts all.
    """

    tokens: list[list[int]]
    loss_mask: list[list[bool]]
    scores: list[float]
    log_probs: list[list[float]] | None = None
    policy_version: int | None = None
    temperatures: list[float] | None = None
    advantages: list[list[float]] | None = None
    counted: list[bool] | None = None

    @classmethod
    def of_completions(
        cls,
        prompt: Sequence[int],
        completions: Sequence[TokenCompletion],
        scores: Sequence[float],
        policy_version: int,
        temperature: float = 1.0,
    ) -> "TokenGroup":
        """A group of a policy's completions of one prompt (token ids), with a score for each. All of a completion's
        tokens are learnt."""
        return cls(
            tokens=[[*prompt, *one.token_ids] for one in completions],
            loss_mask=[[False] * len(prompt) + [True] * len(one.token_ids) for one in completions],
            scores=list(scores),
            log_probs=[[NO_LOG_PROB] * len(prompt) + one.log_probs for one in completions],
            policy_version=policy_version,
            temperatures=[temperature] * len(completions),
        )

    @classmethod
    def from_wire(cls, group: Mapping[str, Any], policy_version: int | None = None) -> "TokenGroup":
        """A group as a hub delivers it, with all keys of `loomrl.language.trajectory.wire.ScoredGroup`.

        Raises:
            ArtifactError: where its lists do not fit together, nothing is to be learnt, a log-probability is above 0,
                or a temperature, score or advantage is so large that weights would be no numbers afterwards. The wire
                does not rule these out.
        """
        tokens, masks, num_samples = group["tokens"], group["masks"], len(group["tokens"])
        _require_lengths("scores", [group["scores"]], [num_samples])
        for key in ("masks", "inference_logprobs", "advantages"):
            if group.get(key) is not None:
                _require_lengths(key, [group[key]], [num_samples])
                _require_lengths(key, group[key], [len(sequence) for sequence in tokens])
        if num_samples == 0 or min(map(len, tokens)) < 2:
            raise ArtifactError(
                "a group has no sample, or one of fewer than two tokens; there is nothing to learn from"
            )
        loss_mask = [[mask != MASKED for mask in sequence] for sequence in masks]
        if not any(any(sequence[1:]) for sequence in loss_mask):
            raise ArtifactError(f"a group's masks are {MASKED} everywhere behind the first tokens; nothing is learnt")
        _require_log_probs(group.get("inference_logprobs") or [], loss_mask)
        _require_bounded("scores", [group["scores"]])
        _require_bounded("advantages", group.get("advantages") or [])
        overrides = group.get("overrides") or [{}] * num_samples
        _require_lengths("overrides", [overrides], [num_samples])
        return cls(
            tokens=tokens,
            loss_mask=loss_mask,
            scores=group["scores"],
            log_probs=group.get("inference_logprobs"),
            policy_version=policy_version,
            temperatures=[_temperature(group, override) for override in overrides],
            advantages=group.get("advantages"),
            counted=[not override.get("set_advantage_to_zero") for override in overrides],
        )

    def require_readable(self, config: ModelConfig) -> None:
        """Check that a model can read all tokens.

        Raises:
            ArtifactError: where a token is unknown to a model of this config, or a sample too long for it.
        """
        longest = max(map(len, self.tokens))
        if longest > config.max_tokens:
            raise ArtifactError(
                f"a sample has {longest} tokens, the policy reads {config.max_tokens}; let environments send no "
                "longer ones (max_token_len), or make it with a higher max_tokens"
            )
        low, high = min(map(min, self.tokens)), max(map(max, self.tokens))
        if low < 0 or high >= config.vocabulary_size:
            raise ArtifactError(
                f"tokens from {low} to {high} reached a policy of {config.vocabulary_size}; use its tokenizer"
            )

    def __len__(self) -> int:
        return len(self.tokens)


def _temperature(group: Mapping[str, Any], override: Mapping[str, Any]) -> float:
    """The sample's own, or the generation's, or the group's, or 1."""
    places = (override, group.get("generation_params") or {}, group.get("group_overrides") or {})
    temperature = next((place["temperature"] for place in places if "temperature" in place), 1.0)
    if temperature == 0:
        return 1.0  # of greedy answers the log-probabilities are those at 1
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        raise ArtifactError(
            f"a group's temperature is {temperature!r}; give 0, or a number from {LOWEST_TEMPERATURE} to "
            f"{HIGHEST_TEMPERATURE:.0f}"
        )
    return float(temperature)


def _require_bounded(key: str, rows: Sequence[Sequence[float]]) -> None:
    if wrong := [value for row in rows for value in row if not abs(value) <= _LARGEST_WORTH]:
        raise ArtifactError(f"{wrong[0]} is one of a group's {key}, which lie within {_LARGEST_WORTH:.0e}; scale them")


def _require_log_probs(rows: Sequence[Sequence[float]], loss_mask: Sequence[Sequence[bool]]) -> None:
    """Raise ArtifactError for a log-probability of a learnt token above 0. The first token of a sample has none,
    whatever its mask says."""
    pairs = (pair for row, flags in zip(rows, loss_mask, strict=False) for pair in zip(row[1:], flags[1:], strict=True))
    if wrong := [value for value, is_learnt in pairs if is_learnt and not value <= _HIGHEST_LOG_PROB]:
        raise ArtifactError(
            f"{wrong[0]} is the log-probability of a token that is not masked, and those are at most 0; send what the "
            "engine said, or no inference_logprobs"
        )


def _require_lengths(key: str, rows: Sequence[Sequence[Any]], lengths: Sequence[int]) -> None:
    found = [len(row) for row in rows]
    if found != list(lengths):
        raise ArtifactError(f"a group's {key} have lengths {found}, its tokens {list(lengths)}; they must be the same")

"""What a version would decide along episodes that another one played."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.policy.model import STATE_OUT, ServedPolicy
from loomrl.shadow.continuations import answered
from loomrl.types import Episode, FloatArray

_ROWS = 8_192  # observations that are asked about at once


@dataclass(frozen=True)
class ShadowDecisions:
    """What a version decides for N observations: actions (N, *action), and logits (N, A) of choices, None where it has
    none."""

    action: NDArray[Any]  # (N, *action)
    logits: FloatArray | None  # (N, A), of choices

    def rows(self, chosen: NDArray[Any] | slice) -> "ShadowDecisions":
        """The decisions at these rows, by index, mask or slice of the batch."""
        return ShadowDecisions(self.action[chosen], None if self.logits is None else self.logits[chosen])


def decisions_along(policy: ServedPolicy, episodes: Sequence[Episode]) -> list[ShadowDecisions]:
    """What the version does at each step of episodes, one entry for each, of L rows: a recurrent one remembers what it
    was shown.

    There must be one episode at least.

    Raises:
        GateRefused: where the version has no answer to an observation.
    """
    lengths = np.array([episode.length for episode in episodes])
    starts = np.cumsum(lengths) - lengths
    memory = np.zeros((len(episodes), policy.memory_size), np.float32)
    found: dict[str, NDArray[Any]] = {}
    observed = np.concatenate([episode.obs for episode in episodes])  # (N, *obs)
    for rows, owners in _batches(policy, starts, lengths):
        choices = answered(policy, observed[rows], memory[owners] if policy.memory_size else None)
        if policy.memory_size:
            memory[owners] = choices.outputs[STATE_OUT]
        told = {"action": choices.action} | {key: choices.outputs[key] for key in ("logits",) if key in choices.outputs}
        for name, values in told.items():
            found.setdefault(name, np.empty((int(lengths.sum()), *values.shape[1:]), values.dtype))[rows] = values
    whole = ShadowDecisions(found["action"], found.get("logits"))
    return [whole.rows(slice(start, start + length)) for start, length in zip(starts, lengths, strict=True)]


def _batches(
    policy: ServedPolicy, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows to ask about together, and the episodes they are of: step by step where the version remembers."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    rows = np.arange(len(owners))
    if not policy.memory_size:
        cuts = range(0, len(rows), _ROWS)
        return [(rows[cut : cut + _ROWS], owners[cut : cut + _ROWS]) for cut in cuts]
    steps = rows - starts[owners]
    return [(rows[steps == step], owners[steps == step]) for step in range(int(lengths.max()))]

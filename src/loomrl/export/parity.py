"""The proof that the graph acts like the network, on observations visited and random.

Rule: an output passes when |graph - network| <= limit * max(1, |network|) everywhere: absolutely for small numbers,
relatively for large ones, whose last float32 digits alone exceed any small absolute limit. A number of an action that
has two bounds is held to limit * (high - low) where that is less, or else in a narrow Box no action would differ; but
roundings to float32, eight of them, are no difference. An action that is a choice
(an index, several, or bits) and differs is a mismatch, and none is allowed, unless in every component that differs the
network's two largest logits (a bit's logit and zero) lie within twice what the limit allows each of them: then either
choice is right, and the action is counted as a near tie. Of two texts the first byte that differs decides: what follows
are answers to different texts, and such a row is compared no further. A recurrent policy is asked with the memory of an
episode's start at every second observation, and with a random one, of any values a gated unit can hold, at the others.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.environment.text import TextBox
from loomrl.types import ParityReport

Outputs = Mapping[str, NDArray[Any]]


class Exported(Protocol):
    """A policy in an exported format, as parity is proved of it."""

    def outputs(self, obs: NDArray[Any], memory: NDArray[Any] | None = None, /) -> Outputs:
        """All outputs (B, ...) by name, for observations (B, *obs) and, of a recurrent policy, its memory (B, M)."""
        ...


_CHUNK = 1_024
_SEED = 20_261_120
_ROUNDINGS = 8  # to float32, in which graph and network may differ however narrow a Box is
_TINY = np.finfo(np.float64).tiny  # in place of a width of 0
CONTINUOUS = ("continuous", "squashed")


def prove_parity(
    network: TrainedPolicy,
    graph: Exported,
    visited: NDArray[Any],
    random: NDArray[Any],
    limit: float,
) -> ParityReport:
    """Compare every output of network and exported graph on every observation, `visited` and `random` (N, *obs).

    Returns the greatest differences, and whether the proof passed: a difference above `limit` raises nothing.
    """
    observations = np.concatenate([visited, random])
    inputs = [observations]
    if network.memory_size:
        inputs.append(_memories(len(observations), network.memory_size))
    expected, found = _outputs(partial(_forward, network), inputs), _outputs(graph.outputs, inputs)
    choice = network.action_kind not in CONTINUOUS
    mismatches, near_ties = 0, np.zeros(len(observations), dtype=np.bool_)
    if choice:
        mismatches, near_ties = _mismatches(expected, found, limit, network.action_space)
    rows = ~near_ties if isinstance(network.action_space, TextBox) else slice(None)
    compared = [name for name in expected if not (choice and name == "action")]
    differences = {name: _absolute(expected[name][rows], found[name][rows]) for name in compared}
    scales = {name: np.maximum(1.0, np.abs(expected[name][rows])) for name in compared}
    if not choice:
        scales["action"] = _action_scale(expected["action"], network.action_space, limit)
    scaled = {name: differences[name] / scales[name] for name in compared}
    worst = {name: float(values.max(initial=0.0)) for name, values in scaled.items()}
    return ParityReport(
        num_observations=len(observations),
        num_visited=len(visited),
        num_random=len(random),
        action_mismatches=mismatches,
        num_near_ties=int(near_ties.sum()),
        max_abs_difference={name: float(values.max(initial=0.0)) for name, values in differences.items()},
        max_scaled_difference=worst,
        limit=limit,
        passed=mismatches == 0 and all(value <= limit for value in worst.values()),  # NaN fails
    )


def _forward(network: TrainedPolicy, *inputs: NDArray[Any]) -> Outputs:
    with torch.no_grad():
        found = network.forward(*(torch.from_numpy(part) for part in inputs))
    return {name: value.numpy() for name, value in found.items()}


def _outputs(ask: Callable[..., Outputs], inputs: list[NDArray[Any]]) -> Outputs:
    starts = range(0, len(inputs[0]), _CHUNK)
    chunks = [ask(*(part[start : start + _CHUNK] for part in inputs)) for start in starts]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _memories(count: int, size: int) -> NDArray[np.float32]:
    memories = np.random.default_rng(_SEED).uniform(-1.0, 1.0, (count, size)).astype(np.float32)
    memories[::2] = 0.0
    return memories


def _absolute(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[Any]:
    if expected.shape != found.shape:
        return np.array(np.inf)
    return np.asarray(np.abs(expected.astype(np.float64) - found.astype(np.float64)))


def _action_scale(action: NDArray[Any], space: gymnasium.Space[Any], limit: float) -> NDArray[np.float64]:
    """What differences of actions (B, *action) in a Box are divided by before they are held to the limit."""
    assert isinstance(space, gymnasium.spaces.Box)
    size = np.abs(action.astype(np.float64))
    width = space.high.astype(np.float64) - space.low  # infinite where a bound is
    rounded = _ROUNDINGS * np.finfo(np.float32).eps * size / limit
    return np.asarray(np.maximum(np.minimum(np.maximum(1.0, size), width), np.maximum(rounded, _TINY)))


def _mismatches(
    expected: Outputs, found: Outputs, limit: float, space: gymnasium.Space[Any]
) -> tuple[int, NDArray[np.bool_]]:
    """How many actions differ without a near tie to explain it, and which (N,) differ with one."""
    num_rows = len(expected["action"])
    differ = (expected["action"] != found["action"]).reshape(num_rows, -1)  # (N, components)
    differs = differ.any(axis=-1)
    if isinstance(space, TextBox):
        differ &= np.cumsum(differ, axis=-1) == 1  # the first byte that differs
    near = np.stack([_near_tie(logits, limit) for logits in _components(expected["logits"], space)], axis=-1)
    explained = np.all(near | ~differ, axis=-1)
    return int((differs & ~explained).sum()), differs & explained


def _components(logits: NDArray[Any], space: gymnasium.Space[Any]) -> list[NDArray[np.float64]]:
    """The logits (N, n) that each component of an action is chosen from; a bit is chosen from zero and its own."""
    exact = logits.astype(np.float64)
    if isinstance(space, TextBox):
        return list(exact.transpose(1, 0, 2))  # of each byte the two largest
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        ends = np.cumsum(space.nvec.ravel())
        return [exact[:, end - size : end] for end, size in zip(ends, space.nvec.ravel(), strict=True)]
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return [np.stack([np.zeros(len(exact)), column], axis=-1) for column in exact.T]
    return [exact]


def _near_tie(logits: NDArray[np.float64], limit: float) -> NDArray[np.bool_]:
    """Where the two largest of (N, n) logits are too close to tell, (N,)."""
    if logits.shape[-1] < 2:
        return np.zeros(len(logits), dtype=np.bool_)
    largest = np.sort(logits, axis=-1)[:, -2:]
    return np.asarray(largest[:, 1] - largest[:, 0] <= limit * np.maximum(1.0, np.abs(largest)).sum(-1))

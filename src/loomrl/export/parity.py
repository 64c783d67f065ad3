"""The proof that the graph acts like the network, on observations visited and random.

Rule: an output passes when |graph - network| <= limit * max(1, |network|) everywhere: absolutely for small numbers,
relatively for large ones, whose last float32 digits alone exceed any small absolute limit. A discrete action that
differs is a mismatch, and none is allowed, unless the network's two largest logits lie within twice what the limit
allows each of them: then either action is right, and it is counted as a near tie.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loomrl.algorithms.policy import TrainedPolicy
from loomrl.serving.model import ServedPolicy
from loomrl.types import ParityReport

Outputs = Mapping[str, NDArray[Any]]
_CHUNK = 1_024


def prove_parity(
    network: TrainedPolicy,
    graph: ServedPolicy,
    visited: NDArray[Any],
    random: NDArray[Any],
    limit: float,
) -> ParityReport:
    """Compare every output on every observation."""
    observations = np.concatenate([visited, random])
    expected, found = _network_outputs(network, observations), _graph_outputs(graph, observations)
    discrete = network.is_discrete
    compared = [name for name in expected if not (discrete and name == "action")]
    differences = {name: _absolute(expected[name], found[name]) for name in compared}
    scaled = {name: differences[name] / np.maximum(1.0, np.abs(expected[name])) for name in compared}
    mismatches, near_ties = _mismatches(expected, found, limit) if discrete else (0, 0)
    worst = {name: float(values.max(initial=0.0)) for name, values in scaled.items()}
    return ParityReport(
        num_observations=len(observations),
        num_visited=len(visited),
        num_random=len(random),
        action_mismatches=mismatches,
        num_near_ties=near_ties,
        max_abs_difference={name: float(values.max(initial=0.0)) for name, values in differences.items()},
        max_scaled_difference=worst,
        limit=limit,
        passed=mismatches == 0 and all(value <= limit for value in worst.values()),  # NaN fails
    )


def _network_outputs(network: TrainedPolicy, observations: NDArray[Any]) -> Outputs:
    with torch.no_grad():
        chunks = [network.forward(torch.from_numpy(chunk)) for chunk in _chunks(observations)]
    return {name: np.concatenate([chunk[name].numpy() for chunk in chunks]) for name in chunks[0]}


def _graph_outputs(graph: ServedPolicy, observations: NDArray[Any]) -> Outputs:
    chunks = [graph.outputs(chunk) for chunk in _chunks(observations)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _chunks(observations: NDArray[Any]) -> list[NDArray[Any]]:
    return [observations[start : start + _CHUNK] for start in range(0, len(observations), _CHUNK)]


def _absolute(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[Any]:
    if expected.shape != found.shape:
        return np.array(np.inf)
    return np.asarray(np.abs(expected.astype(np.float64) - found.astype(np.float64)))


def _mismatches(expected: Outputs, found: Outputs, limit: float) -> tuple[int, int]:
    differ = expected["action"] != found["action"]
    ordered = np.sort(expected["logits"].astype(np.float64), axis=-1)  # (N, A)
    if ordered.shape[-1] < 2:
        return int(differ.sum()), 0
    allowed = limit * np.maximum(1.0, np.abs(ordered[:, -2:])).sum(-1)
    near = ordered[:, -1] - ordered[:, -2] <= allowed
    return int((differ & ~near).sum()), int((differ & near).sum())

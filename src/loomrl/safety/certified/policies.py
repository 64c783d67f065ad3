"""A policy as what the verifier reads: the graph that ships, or the one it would be exported as."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from loomrl.safety.certified.graph import read_network
from loomrl.safety.certified.network import Network
from loomrl.safety.certified.verify import CandidateRunner, demand_agreement


@dataclass(frozen=True)
class ExaminedNetwork:
    """The network from observations to logits, or to continuous actions, and the runtime that replays it."""

    network: Network
    replay: CandidateRunner


def network_of(policy: Any, action_space: Any) -> ExaminedNetwork:
    """Read a policy's graph, once for all that is asked about it.

    Raises:
        ArtifactError: for an operator that bounds do not pass, an input beside the observation, or a graph that
            onnxruntime computes otherwise.
    """
    output = "logits" if isinstance(action_space, spaces.Discrete) else "action"
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "policy.onnx"
        graph.write_bytes(_graph(policy))
        network, replay = read_network(graph, output), CandidateRunner(graph, output)
        for size in (1.0, 10.0):
            ends = np.full(network.num_inputs, size)
            demand_agreement(network, replay, -ends, ends, "the policy's graph")
        return ExaminedNetwork(network, replay)


def _graph(policy: Any) -> bytes:
    if isinstance(getattr(policy, "graph", None), bytes):
        return bytes(policy.graph)
    from loomrl.algorithms.policies import OPSET
    from loomrl.algorithms.policies.onnx_graph import build_graph

    return build_graph(policy, OPSET)

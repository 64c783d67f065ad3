"""The policy that every server of the comparison serves: 64x64, four observations, two actions."""

from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.onnx_graph import build_graph, tensors
from loomrl.environment.spaces import space_to_json
from loomrl.serving.policy.model import GRAPH, MANIFEST, open_session
from loomrl.system.files import sha256, write_atomic
from loomrl.types import EnvironmentSpec, PolicyManifest

NAME = "bench"
SHIELD = [  # what the policy must not do; the server checks it for every decision
    {
        "name": name,
        "quantity": quantity,
        "low": low,
        "high": high,
        "per": "step",
        "max_probability": 0.01,
        "enforce": True,
    }
    for name, quantity, low, high in (("position", "observation[0]", -100.0, 100.0), ("choice", "action[0]", 0, 1))
]
OBSERVATIONS = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)


def write_policy(folder: Path, seed: int = 0) -> Path:
    """Export it into a folder as the life cycle does."""
    observation, action = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)
    generator = torch.Generator().manual_seed(seed)
    network = ActorCriticPolicy.for_spaces("ppo", observation, action, (64, 64), "tanh", True, generator).eval()
    graph = build_graph(network, 17)
    inputs, outputs = tensors(open_session(graph, NAME))
    spaces = {"observation": space_to_json(observation), "action": space_to_json(action)}
    manifest = PolicyManifest(
        name=NAME,
        onnx_sha256=sha256(graph),
        policy_digest="",
        snapshot_digest="",
        case_sha256="",
        environment=EnvironmentSpec(name=NAME, version="0", entry_point="", **spaces),
        algorithm="ppo",
        action_kind="discrete",
        inputs=inputs,
        outputs=outputs,
        constraints=SHIELD,
        probe_observations=OBSERVATIONS[:8].tolist(),
        probe_actions=network(OBSERVATIONS[:8]).tolist(),
        opset=17,
    )
    write_atomic(folder / GRAPH, graph)
    manifest.write(folder / MANIFEST)
    return folder

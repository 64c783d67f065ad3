"""Small recurrent policies with their exported graphs, and episodes for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms.policies.recurrent import RecurrentPolicy
from loomrl.serving.policy.model import GRAPH, MANIFEST, STATE_OUT, ServedPolicy
from loomrl.system.files import write_sums
from tests.support.served import served

OBSERVED = Box(-1.0, 1.0, (3,), np.float32)
MEMORY = 12


def recurrent_folder(folder: Path, seed: int = 1, action_space: Any = None) -> Path:
    """The export of a `recurrent_ppo` policy with random weights, large enough that its memory matters."""
    generator = torch.Generator().manual_seed(seed)
    network = RecurrentPolicy.for_spaces(
        "recurrent_ppo",
        OBSERVED,
        action_space or Discrete(4),
        hidden_sizes=(8,),
        activation="tanh",
        normalize_observations=False,
        memory_size=MEMORY // 2,
        generator=generator,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    policy = served(network)
    probes = np.zeros((2, 3), np.float32)
    manifest = policy.manifest.model_copy(
        update={"probe_observations": probes.tolist(), "probe_actions": policy(probes).tolist()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRAPH).write_bytes(policy.graph)
    manifest.write(folder / MANIFEST)
    write_sums(folder)
    return folder


def episode(seed: int, length: int = 6) -> list[list[float]]:
    """What is observed in an episode."""
    observed = np.random.default_rng(seed).uniform(-1, 1, (length, 3)).astype(np.float32)
    return [[float(number) for number in row] for row in observed]


def played(policy: ServedPolicy, observed: list[list[float]]) -> list[tuple[Any, float]]:
    """Action and value in each step of an episode that the policy decides from its beginning."""
    state, found = np.zeros((1, policy.memory_size), np.float32), []
    for one in observed:
        outputs = policy.outputs(np.array([one], np.float32), state)
        state = outputs[STATE_OUT]
        found.append((outputs["action"][0].tolist(), float(outputs["value"][0])))
    return found

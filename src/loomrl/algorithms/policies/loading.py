"""Reads a trained policy as the class that its algorithm names."""

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from loomrl.algorithms.architecture import ARCHITECTURE, WEIGHTS, PolicyArchitecture
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.algorithms.registry import get_algorithm
from loomrl.errors import ArtifactError


def load_policy(folder: Path) -> TrainedPolicy:
    """Read a policy that `TrainedPolicy.save` wrote, as the class its algorithm names (`Policy`).

    Raises:
        ArtifactError: naming the file that is missing, torn or does not fit.
        ConfigError: when its algorithm is not installed.
    """
    architecture = PolicyArchitecture.read(folder / ARCHITECTURE)
    policy = policy_class(architecture.algorithm)(architecture)
    path = folder / WEIGHTS
    try:
        policy.load_state_dict(safetensors.torch.load(path.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{path} does not hold this policy's weights: {error}; train it again") from error
    return policy.eval()


def policy_class(name: str) -> type[TrainedPolicy]:
    """The class of an algorithm's policies: its plug-in's `Policy`, else `ActorCriticPolicy`.

    Raises:
        ConfigError: when there is no algorithm of this name, or an entry point cannot be loaded.
    """
    return get_algorithm(name).Policy or ActorCriticPolicy

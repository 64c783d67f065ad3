"""LoomRL takes reinforcement-learning policies to production.

Public names are imported on first use, so that `import loomrl` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "BaseEnvironment": "loomrl.environment.base",
    "register_environment": "loomrl.environment.registry",
    "LoomRLGym": "loomrl.gym.facade",
    "EnvironmentType": "loomrl.gym.facade",
    "GymTrainingConfig": "loomrl.gym.integration",
    "GymPPOIntegration": "loomrl.gym.integration",
    "create_integrated_rl_system": "loomrl.gym.integration",
    "HubClient": "loomrl.trajectory.client",
    "VectorizedEnv": "loomrl.environment.vectorized",
    "PrioritizedReplayBuffer": "loomrl.replay.transitions",
    "InferenceEngine": "loomrl.inference",
    "BuiltinEngine": "loomrl.inference.builtin",
    "VLLMEngine": "loomrl.inference.vllm",
    "SGLangEngine": "loomrl.inference.sglang",
    "PPOConfig": "loomrl.training.trainer",
    "PPOTrainer": "loomrl.training.trainer",
    "DistributedTrainer": "loomrl.distributed.trainer",
    "PolicyEvaluator": "loomrl.distributed.trainer",
    "NexusWorker": "loomrl.distributed.nexus",
    "RolloutWorker": "loomrl.distributed.actors",
    "PPOLearner": "loomrl.distributed.actors",
    "PolicyNetwork": "loomrl.algorithms.networks",
    "StateEncoder": "loomrl.algorithms.networks",
    "GaussianPolicyHead": "loomrl.algorithms.networks",
    "ValueHead": "loomrl.algorithms.networks",
    "PolicyClient": "loomrl.serving.client",
    "AsyncPolicyClient": "loomrl.serving.client",
}

__all__ = [
    "AsyncPolicyClient",
    "BaseEnvironment",
    "BuiltinEngine",
    "DistributedTrainer",
    "EnvironmentType",
    "GaussianPolicyHead",
    "GymPPOIntegration",
    "GymTrainingConfig",
    "HubClient",
    "InferenceEngine",
    "LoomRLGym",
    "NexusWorker",
    "PPOConfig",
    "PPOLearner",
    "PPOTrainer",
    "PolicyClient",
    "PolicyEvaluator",
    "PolicyNetwork",
    "PrioritizedReplayBuffer",
    "RolloutWorker",
    "SGLangEngine",
    "StateEncoder",
    "VLLMEngine",
    "ValueHead",
    "VectorizedEnv",
    "__version__",
    "create_integrated_rl_system",
    "register_environment",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'loomrl' has no attribute {name!r}; it has: {', '.join(sorted(_PUBLIC))}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


if TYPE_CHECKING:
    from loomrl.algorithms.networks import GaussianPolicyHead, PolicyNetwork, StateEncoder, ValueHead
    from loomrl.distributed.actors import PPOLearner, RolloutWorker
    from loomrl.distributed.nexus import NexusWorker
    from loomrl.distributed.trainer import DistributedTrainer, PolicyEvaluator
    from loomrl.environment.base import BaseEnvironment
    from loomrl.environment.registry import register_environment
    from loomrl.environment.vectorized import VectorizedEnv
    from loomrl.gym.facade import EnvironmentType, LoomRLGym
    from loomrl.gym.integration import GymPPOIntegration, GymTrainingConfig, create_integrated_rl_system
    from loomrl.inference import InferenceEngine
    from loomrl.inference.builtin import BuiltinEngine
    from loomrl.inference.sglang import SGLangEngine
    from loomrl.inference.vllm import VLLMEngine
    from loomrl.replay.transitions import PrioritizedReplayBuffer
    from loomrl.serving.client import AsyncPolicyClient, PolicyClient
    from loomrl.training.trainer import PPOConfig, PPOTrainer
    from loomrl.trajectory.client import HubClient

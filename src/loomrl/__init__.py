"""LoomRL takes reinforcement-learning policies to production.

Public names are imported on first use, so that `import loomrl` costs nothing.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from loomrl.system.moved import MovedFinder

__version__ = "0.1.0"

_PUBLIC = {
    "BaseEnvironment": "loomrl.environment.base",
    "register_environment": "loomrl.environment.registry",
    "LoomRLGym": "loomrl.gym.facade",
    "EnvironmentType": "loomrl.gym.facade",
    "GymTrainingConfig": "loomrl.training.integrated",
    "GymPPOIntegration": "loomrl.training.integrated",
    "create_integrated_rl_system": "loomrl.training.integrated",
    "HubClient": "loomrl.language.trajectory.client",
    "VectorizedEnv": "loomrl.environment.vectorized",
    "PrioritizedReplayBuffer": "loomrl.algorithms.replay.transitions",
    "InferenceEngine": "loomrl.language.inference",
    "BuiltinEngine": "loomrl.language.inference.builtin",
    "VLLMEngine": "loomrl.language.inference.vllm",
    "SGLangEngine": "loomrl.language.inference.sglang",
    "PPOConfig": "loomrl.training.trainer",
    "PPOTrainer": "loomrl.training.trainer",
    "DistributedTrainer": "loomrl.training.distributed.trainer",
    "PolicyEvaluator": "loomrl.training.distributed.trainer",
    "NexusWorker": "loomrl.training.integrated.nexus",
    "RolloutWorker": "loomrl.training.distributed.rollout_workers.workers",
    "PPOLearner": "loomrl.training.distributed.rollout_workers.workers",
    "PolicyNetwork": "loomrl.algorithms.networks.modules",
    "StateEncoder": "loomrl.algorithms.networks.modules",
    "GaussianPolicyHead": "loomrl.algorithms.networks.modules",
    "ValueHead": "loomrl.algorithms.networks.modules",
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


sys.meta_path.append(MovedFinder())


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'loomrl' has no attribute {name!r}; it has: {', '.join(sorted(_PUBLIC))}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


if TYPE_CHECKING:
    from loomrl.algorithms.networks.modules import GaussianPolicyHead, PolicyNetwork, StateEncoder, ValueHead
    from loomrl.algorithms.replay.transitions import PrioritizedReplayBuffer
    from loomrl.environment.base import BaseEnvironment
    from loomrl.environment.registry import register_environment
    from loomrl.environment.vectorized import VectorizedEnv
    from loomrl.gym.facade import EnvironmentType, LoomRLGym
    from loomrl.language.inference import InferenceEngine
    from loomrl.language.inference.builtin import BuiltinEngine
    from loomrl.language.inference.sglang import SGLangEngine
    from loomrl.language.inference.vllm import VLLMEngine
    from loomrl.language.trajectory.client import HubClient
    from loomrl.serving.client import AsyncPolicyClient, PolicyClient
    from loomrl.training.distributed.rollout_workers.workers import PPOLearner, RolloutWorker
    from loomrl.training.distributed.trainer import DistributedTrainer, PolicyEvaluator
    from loomrl.training.integrated import GymPPOIntegration, GymTrainingConfig, create_integrated_rl_system
    from loomrl.training.integrated.nexus import NexusWorker
    from loomrl.training.trainer import PPOConfig, PPOTrainer

"""LoomRL takes reinforcement-learning policies to production.

Public names are imported on first use, so that `import loomrl` costs nothing.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from loomrl.system.moved import MovedFinder

__version__ = "0.1.0"

_PUBLIC = {  # module -> the names that it offers here
    "loomrl.algorithms.networks.modules": "GaussianPolicyHead PolicyNetwork StateEncoder ValueHead",
    "loomrl.algorithms.replay.transitions": "PrioritizedReplayBuffer",
    "loomrl.environment.base": "BaseEnvironment",
    "loomrl.environment.registry": "register_environment",
    "loomrl.environment.vectorized": "VectorizedEnv",
    "loomrl.gym.facade": "EnvironmentType LoomRLGym",
    "loomrl.language.inference": "InferenceEngine",
    "loomrl.language.inference.builtin": "BuiltinEngine",
    "loomrl.language.inference.sglang": "SGLangEngine",
    "loomrl.language.inference.vllm": "VLLMEngine",
    "loomrl.language.trajectory.client": "HubClient",
    "loomrl.serving.client": "AsyncPolicyClient PolicyClient",
    "loomrl.training.distributed.rollout_workers.workers": "PPOLearner RolloutWorker",
    "loomrl.training.distributed.trainer": "DistributedTrainer PolicyEvaluator",
    "loomrl.training.integrated": "GymPPOIntegration GymTrainingConfig create_integrated_rl_system",
    "loomrl.training.integrated.nexus": "NexusWorker",
    "loomrl.training.trainer": "PPOConfig PPOTrainer",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

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
    if name not in _MODULES:
        raise AttributeError(f"module 'loomrl' has no attribute {name!r}; it has: {', '.join(sorted(_MODULES))}")
    return getattr(importlib.import_module(_MODULES[name]), name)


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

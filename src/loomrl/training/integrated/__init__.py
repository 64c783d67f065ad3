"""The integrated system: environments -> Trajectory API -> PPO -> inference engine -> environments."""

from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.results import IntegrationResults, Iteration
from loomrl.training.integrated.system import GymPPOIntegration, create_integrated_rl_system

__all__ = [
    "GymPPOIntegration",
    "GymTrainingConfig",
    "IntegrationResults",
    "Iteration",
    "create_integrated_rl_system",
]

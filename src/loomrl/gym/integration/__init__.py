"""The integrated system: environments -> Trajectory API -> PPO -> inference engine -> environments."""

from loomrl.gym.integration.config import GymTrainingConfig
from loomrl.gym.integration.results import IntegrationResults, Iteration
from loomrl.gym.integration.system import GymPPOIntegration, create_integrated_rl_system

__all__ = [
    "GymPPOIntegration",
    "GymTrainingConfig",
    "IntegrationResults",
    "Iteration",
    "create_integrated_rl_system",
]

"""Where users look for the environment SDK: `from loomrl.envs import BaseEnvironment`."""

from loomrl.environment.base import BaseEnvironment
from loomrl.environment.registry import register_environment
from loomrl.environment.vectorized import VectorizedEnv

__all__ = ["BaseEnvironment", "VectorizedEnv", "register_environment"]

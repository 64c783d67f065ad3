"""Where users look for the environment SDK: `from loomrl.envs import BaseEnvironment`."""

from loomrl.environment.base import BaseEnvironment
from loomrl.environment.registry import register_environment

__all__ = ["BaseEnvironment", "register_environment"]

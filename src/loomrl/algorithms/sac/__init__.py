"""Soft actor-critic (Haarnoja et al., arXiv 1801.01290) with automatic temperature (arXiv 1812.05905).

The names of the plug-in; `loomrl.algorithms.sac.learner` has the algorithm.
"""

from loomrl.algorithms.sac.config import Config
from loomrl.algorithms.sac.learner import NAME, Policy, build, choose_engine

__all__ = ["NAME", "Config", "Policy", "build", "choose_engine"]

"""Deep Q-learning (Mnih et al., Nature 518, 2015), and double, duelling, n-step, prioritised, quantile by choice.

The names of the plug-in; `loomrl.algorithms.dqn.learner` has the algorithm.
"""

from loomrl.algorithms.dqn.config import Config
from loomrl.algorithms.dqn.learner import NAME, Policy, build, choose_engine

__all__ = ["NAME", "Config", "Policy", "build", "choose_engine"]

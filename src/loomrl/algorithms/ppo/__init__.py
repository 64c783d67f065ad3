"""Proximal policy optimisation with a clipped surrogate (Schulman et al., arXiv 1707.06347).

Advantages by GAE (arXiv 1506.02438). Where this deviates from the paper, as most implementations do: actor and critic
share no layers; advantages are normalised over the whole rollout; observations are normalised by running statistics
inside the policy, taken over after each update, so that within one update old and new policy see the same input;
gradients are clipped by their global norm; Adam's epsilon is 1e-5; an update ends early when the policy has moved
`target_kl` away. Continuous actions are sampled from a Gaussian with state-independent standard deviation and clipped
for the environment only: probabilities are those of the sample before clipping (`squash_actions` replaces clipping by
tanh, with probabilities of the squashed action).

`docs/algorithms/ppo.md` lists the details, the metrics and what was measured.
"""

from typing import Any

import gymnasium

from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.ppo.config import Config
from loomrl.algorithms.ppo.engine import choose as choose_engine
from loomrl.algorithms.ppo.engine import for_backend
from loomrl.algorithms.ppo.schedules import ScheduledPPO
from loomrl.errors import ConfigError

__all__ = ["ACTS_BY_POLICY", "NAME", "Config", "build", "choose_engine", "for_backend"]

NAME = "ppo"
ACTS_BY_POLICY = True


def build(
    config: Config,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,
    peers: LearnerGroup = ALONE,
) -> ScheduledPPO[Any]:
    """PPO with weights that follow from `seed`, on the engine that `config.engine` asks for or the policy allows.

    Raises:
        ConfigError: for spaces no policy can handle, `engine: compiled` for a policy it cannot express, or environments
            on the device with other learners.
    """
    engine = choose_engine(config, observation_space, action_space)
    if engine == "compiled":
        from loomrl.algorithms.ppo import compiled

        policy = compiled.first_policy(config, observation_space, action_space, seed)
        return compiled.CompiledPPO(config, policy, total_env_steps, peers)
    from loomrl.algorithms.ppo import learner

    first = learner.first_policy(config, observation_space, action_space, seed)
    if engine == "torch":
        return learner.PPO(config, first, total_env_steps, peers)
    if peers.num_learners > 1:
        raise ConfigError(
            "training.distributed: environments of the back-end device are learnt from by one learner; set "
            "environment.backend to auto, or num_learners to 1"
        )
    from loomrl.algorithms.ppo.device import DevicePPO

    return DevicePPO(config, first, total_env_steps)

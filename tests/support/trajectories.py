"""Trajectories that no environment gave."""

import numpy as np

from loomrl.algorithms.base import Algorithm
from loomrl.types import Trajectory


def made_up(algorithm: Algorithm, seed: int = 0, num_steps: int = 16) -> Trajectory:
    """A trajectory of the algorithm's own actions on made-up observations, with both kinds of ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(num_steps + 1, 4, 3)).astype(np.float32)
    acts = [algorithm.act(step, rng) for step in obs[:num_steps]]
    terminated = rng.random((num_steps, 4)) < 0.1
    truncated = (rng.random((num_steps, 4)) < 0.1) & ~terminated
    next_obs = obs[1:].copy()
    next_obs[terminated | truncated] += 1.0
    extras = {name: np.stack([act.extras[name] for act in acts]) for name in acts[0].extras}
    reward = rng.normal(size=(num_steps, 4)) + obs[:num_steps, :, 0]
    action = np.stack([act.action for act in acts])
    return Trajectory(obs[:num_steps], action, reward, terminated, truncated, next_obs, extras)

"""Trajectories that no environment gave."""

import numpy as np

from loomrl.algorithms.base import Algorithm
from loomrl.types import Trajectory


def made_up(algorithm: Algorithm, seed: int = 0) -> Trajectory:
    """A trajectory of the algorithm's own actions on made-up observations, with both kinds of ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(17, 4, 3)).astype(np.float32)
    acts = [algorithm.act(step, rng) for step in obs[:16]]
    terminated = rng.random((16, 4)) < 0.1
    truncated = (rng.random((16, 4)) < 0.1) & ~terminated
    next_obs = obs[1:].copy()
    next_obs[terminated | truncated] += 1.0
    extras = {name: np.stack([act.extras[name] for act in acts]) for name in acts[0].extras}
    reward = rng.normal(size=(16, 4)) + obs[:16, :, 0]
    return Trajectory(obs[:16], np.stack([act.action for act in acts]), reward, terminated, truncated, next_obs, extras)

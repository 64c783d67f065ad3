"""What a memory is worth where velocities are hidden: `python benchmarks/memory.py` writes `results/memory.json`.

CartPole-v1 observed by its two positions alone. Three learners with the same settings: PPO that sees one observation,
PPO that sees the last four (`environment.frame_stack: 4`), recurrent PPO that sees one. 100 greedy episodes on seeds
used nowhere else.
"""

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from loomrl.algorithms import ppo, recurrent_ppo
from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.environment.wrappers.stacking import FrameStack
from loomrl.system.files import write_json
from loomrl.system.threads import one_thread

RESULTS = Path(__file__).parent / "results" / "memory.json"
SETTINGS: dict[str, Any] = {
    "num_envs": 16,
    "rollout_length": 128,
    "batch_size": 256,
    "n_epochs": 5,
    "learning_rate": 1e-3,
    "hidden_sizes": (64,),
    "normalize_rewards": True,  # returns reach 500
    "engine": "torch",  # the compiled engine has no memory: the same engine for all
}
HELD_OUT = 1_000_000
LEARNERS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "ppo": (ppo, 1, {}),
    "ppo, 4 frames": (ppo, 4, {}),
    "recurrent_ppo": (recurrent_ppo, 1, {"memory_size": 64, "sequence_length": 16}),
}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole's cart position and pole angle."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """(4,) -> (2,)."""
        return observation[::2]


def make(num_frames: int) -> gymnasium.Env[Any, Any]:
    """One environment that shows the last `num_frames` positions."""
    env: gymnasium.Env[Any, Any] = Positions(gymnasium.make("CartPole-v1"))
    return FrameStack(env, num_frames) if num_frames > 1 else env


def run(name: str, seed: int, total_env_steps: int) -> dict[str, Any]:
    """Train one learner on one seed; returns its mean greedy return and the CPU seconds it took."""
    plugin, num_frames, more = LEARNERS[name]
    config = plugin.Config(**SETTINGS, **more)
    env = make(num_frames)
    algorithm = plugin.build(
        config, env.observation_space, env.action_space, seed=seed, total_env_steps=total_env_steps
    )
    rng, began = np.random.default_rng(seed), time.process_time()
    with closing(_vector(num_frames, config.num_envs, AutoresetMode.SAME_STEP)) as envs:
        collector = Collector(envs, seed, algorithm.act)
        for _ in range(total_env_steps // config.rollout_size):
            algorithm.update(collector.collect(algorithm.rollout_length, rng), rng)
    seconds = time.process_time() - began
    with closing(_vector(num_frames, 20, AutoresetMode.DISABLED)) as envs:
        episodes = run_episodes(envs, algorithm.policy.act, range(HELD_OUT, HELD_OUT + 100), rng)
    mean_return = float(np.mean([episode.episode_return for episode in episodes]))
    return {"learner": name, "seed": seed, "mean_return": mean_return, "cpu_seconds": round(seconds, 1)}


def _vector(num_frames: int, num_envs: int, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: make(num_frames)] * num_envs, autoreset_mode=mode)


def main() -> None:
    """Every learner on every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=102_400)
    arguments = parser.parse_args()
    rows = []
    with one_thread():
        for seed in range(1, arguments.seeds + 1):
            for name in LEARNERS:  # interleaved, so that all meet the same machine
                rows.append(run(name, seed, arguments.steps))
                print(rows[-1], flush=True)
    document = {"environment": "CartPole-v1, positions alone", "total_env_steps": arguments.steps, "rows": rows}
    write_json(RESULTS, document)


if __name__ == "__main__":
    main()

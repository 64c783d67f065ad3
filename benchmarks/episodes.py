"""Do policies learn as well, and as fast, when episodes go on over checkpoints as when every checkpoint ended them?

    python benchmarks/episodes.py --before ../before/.venv/bin/python    # the interpreter of a checkout of 0375cfd

Four tasks, ten seeds each, trained alike by the code before (every checkpoint ended all episodes) and by this code. The
kept policy plays 50 episodes on seeds of the benchmark's own; a seed's score is their mean return. For each task: the
interquartile means of both, and a 95 % interval of their difference, by a bootstrap over the seeds, whose two scores
stay together. Speed is processor time, before and after in turns. Results that are there already are kept, as long as
the code and the settings they came from are the same.
"""

import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "episodes.json"
SEEDS = range(1, 11)
FIRST_SEED, NUM_EPISODES = 5_000_000, 50
TASKS: dict[str, dict[str, Any]] = {
    "MountainCarContinuous-v0": {
        "total_env_steps": 200_704,
        "parameters": {"num_envs": 64, "rollout_length": 64, "normalize_rewards": True, "gamma": 0.999},
    },
    "HalfCheetah-v5": {
        "total_env_steps": 120_000,
        "parameters": {
            "num_envs": 8,
            "rollout_length": 256,
            "batch_size": 128,
            "n_epochs": 5,
            "learning_rate": 0.0005,
            "normalize_rewards": True,
        },
    },
    "Hopper-v5": {
        "total_env_steps": 160_000,
        "parameters": {
            "num_envs": 16,
            "rollout_length": 128,
            "batch_size": 256,
            "n_epochs": 6,
            "learning_rate": 0.0005,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "normalize_rewards": True,
        },
    },
    "LunarLander-v3": {
        "total_env_steps": 200_000,
        "parameters": {
            "num_envs": 16,
            "rollout_length": 256,
            "batch_size": 256,
            "n_epochs": 6,
            "learning_rate": 0.001,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "normalize_rewards": True,
        },
    },
}


def measure(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed of a task with the code that this process imports, and play it."""
    from loomrl.algorithms.policy import load_policy
    from loomrl.environment.collector import run_episodes
    from loomrl.environment.config import EnvironmentConfig
    from loomrl.environment.make import make_envs
    from loomrl.environment.snapshot import take_snapshot
    from loomrl.training.config import TrainingConfig
    from loomrl.training.threads import one_thread
    from loomrl.training.train import train_policy

    validation = {"interval_env_steps": 40_000, "num_episodes": 10}
    config = TrainingConfig.model_validate({"seed": seed, "validation": validation, **TASKS[task]})
    take_snapshot(EnvironmentConfig(id=task, fingerprint_episodes=1), PROJECT, folder / "snapshot")
    started = time.process_time()
    report = train_policy(config, folder / "snapshot", folder / "policy", home=folder / "home")
    cpu_seconds = time.process_time() - started
    policy = load_policy(folder / "policy")
    with one_thread(), closing(make_envs(folder / "snapshot", NUM_EPISODES, "disabled")) as envs:
        seeds = range(FIRST_SEED, FIRST_SEED + NUM_EPISODES)
        played = run_episodes(envs, policy.act, seeds, np.random.default_rng(0))
    return {
        "task": task,
        "seed": seed,
        "score": float(np.mean([one.episode_return for one in played])),
        "num_episodes": int(report.final_metrics["num_episodes"]),
        "env_steps": report.total_env_steps,
        "cpu_seconds": round(cpu_seconds, 2),
    }


if __name__ == "__main__":
    task, seed, name = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as temporary:
        row = measure(task, seed, Path(temporary))
    print(json.dumps(row))

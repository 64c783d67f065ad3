"""A limit on cost: PPO-Lagrangian beside plain PPO on a velocity-limited task, five seeds each.

    python benchmarks/constrained.py                # seeds 1-5, writes benchmarks/results/constrained.json
    python benchmarks/constrained.py --seeds 1 2    # some of them; writes nothing

Both are trained as `loomrl run configs/half_cheetah_velocity.yaml` trains, with the same settings and for as many
steps; then 100 episodes are played greedily on seeds used nowhere else. Ends with exit code 1 unless PPO-Lagrangian
keeps the mean cost at or under its limit on all seeds but one at most, plain PPO breaks it, and the mean return is at
least half of plain PPO's.
"""

import argparse
import sys
import tempfile
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.make import make_envs
from loomrl.environment.seeds import BENCHMARK_SEEDS
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.system.files import write_json
from loomrl.system.threads import one_thread, processor_family
from loomrl.training.train import train_policy

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "constrained.json"
CONFIG = PROJECT / "configs" / "half_cheetah_velocity.yaml"
LIMITED, PLAIN = "ppo_lagrangian", "ppo"
SEEDS = [1, 2, 3, 4, 5]
NUM_EPISODES = 100


def config_of(algorithm: str, seed: int) -> PolicyConfig:
    """The shipped config; plain PPO has all its parameters but the limit."""
    config = load_config(CONFIG, {"training.seed": seed})
    if algorithm == LIMITED:
        return config
    parameters = {name: value for name, value in config.training.parameters.items() if name != "cost_limit"}
    training = config.training.model_copy(update={"algorithm": algorithm, "parameters": parameters})
    return config.model_copy(update={"training": training})


def measure(algorithm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed and play it."""
    config, snapshot, output = config_of(algorithm, seed), folder / "environment", folder / f"{algorithm}-{seed}"
    if not snapshot.exists():
        take_snapshot(config.environment, PROJECT, snapshot)
    started = time.monotonic()
    report = train_policy(config.training, snapshot, output, home=folder / f"home-{algorithm}-{seed}")
    seconds = time.monotonic() - started
    policy, seeds = load_policy(output), BENCHMARK_SEEDS[:NUM_EPISODES]
    with one_thread(), closing(make_envs(snapshot, 50, "disabled")) as envs:
        episodes = run_episodes(envs, policy.act, seeds, np.random.default_rng(0))
    costs = [episode.episode_cost for episode in episodes]
    if None in costs:
        raise SystemExit(f"{config.environment.id} tells no costs")
    return {
        "algorithm": algorithm,
        "seed": seed,
        "mean_return": float(np.mean([episode.episode_return for episode in episodes])),
        "mean_cost": float(np.mean(costs)),
        "max_cost": float(np.max(costs)),
        "total_env_steps": report.total_env_steps,
        "best_validation_step": report.final_metrics["best_validation_step"],
        "engine": report.engine,
        "seconds": round(seconds, 1),
    }


def verdict(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """What the rows show."""
    limited = [row for row in rows if row["algorithm"] == LIMITED]
    plain = [row for row in rows if row["algorithm"] == PLAIN]
    share = np.mean([row["mean_return"] for row in limited]) / np.mean([row["mean_return"] for row in plain])
    within = sum(row["mean_cost"] <= limit for row in limited)
    broken = sum(row["mean_cost"] > limit for row in plain)
    return {
        "cost_limit": limit,
        "within": within,
        "plain_broke": broken,
        "seeds": len(limited),
        "share_of_return": float(share),
        "reached": bool(len(limited) >= 5 and within >= len(limited) - 1 and broken == len(plain) and share >= 0.5),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in options.seeds:
            for algorithm in (PLAIN, LIMITED):
                row = measure(algorithm, seed, Path(temporary))
                rows.append(row)
                print(
                    f"{algorithm:15} seed {seed}  return {row['mean_return']:7.0f}  cost {row['mean_cost']:6.1f}  "
                    f"{row['seconds']:6.1f} s",
                    flush=True,
                )
    found = verdict(rows, float(config_of(LIMITED, 1).training.parameters["cost_limit"]))
    print(found)
    if options.seeds != SEEDS:
        return 0
    versions = {name: version(name) for name in ("torch", "numpy", "gymnasium", "mujoco")}
    write_json(RESULTS, {"versions": versions, "processor": processor_family(), "verdict": found, "rows": rows})
    return 0 if found["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Do the algorithms learn? The shipped configs, five seeds each, and the greedy policy's mean return over 100 episodes.

    python benchmarks/learning.py                      # every task, seeds 1-5, writes benchmarks/results/learning.json
    python benchmarks/learning.py --task lunarlander --seeds 1 2

Each task is trained exactly as `loomrl run configs/TASK.yaml` trains it, through a snapshot of its environment, then
played on seeds that neither training, validation, evaluation nor the safety gate uses. Ends with exit code 1 when a
seed stays below its task's limit.
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
from loomrl.runs.config import load_config
from loomrl.system.files import read_json, write_json
from loomrl.system.threads import one_thread, processor_family
from loomrl.training.train import train_policy

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "learning.json"
# Mean greedy return every seed must reach.
LIMITS = {"cartpole": 475.0, "lunarlander": 200.0, "hopper": 1000.0, "pendulum": -200.0, "acrobot": -100.0}
NUM_EPISODES = 100


def measure(task: str, seed: int, keep: Path) -> dict[str, Any]:
    """Train one seed of a task and play it."""
    config = load_config(PROJECT / "configs" / f"{task}.yaml", {"training.seed": seed})
    snapshot, output = keep / task / "environment", keep / task / f"seed-{seed}"
    take_snapshot(config.environment, PROJECT, snapshot)
    started, started_cpu = time.monotonic(), time.process_time()
    report = train_policy(config.training, snapshot, output, home=keep / task / f"home-{seed}")
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - started_cpu
    returns = play(snapshot, output)
    return {
        "task": task,
        "environment": config.environment.id,
        "seed": seed,
        "total_env_steps": report.total_env_steps,
        "best_validation_step": report.final_metrics["best_validation_step"],
        "stop_reason": report.stop_reason,
        "mean_return": float(np.mean(returns)),
        "min_return": float(np.min(returns)),
        "num_episodes": len(returns),
        "limit": LIMITS[task],
        "reached": bool(np.mean(returns) >= LIMITS[task]),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "policy_digest": report.policy_digest,
        "parameters": report.parameters,
    }


def play(snapshot: Path, policy_folder: Path) -> list[float]:
    """Returns of the greedy policy on the benchmark's own seeds."""
    policy = load_policy(policy_folder)
    with one_thread(), closing(make_envs(snapshot, 50, "disabled")) as envs:
        seeds = BENCHMARK_SEEDS[:NUM_EPISODES]
        return [one.episode_return for one in run_episodes(envs, policy.act, seeds, np.random.default_rng(0))]


def record(row: dict[str, Any]) -> None:
    """Replace the row of this task and seed in the results."""
    kept = read_json(RESULTS)["rows"] if RESULTS.exists() else []
    rows = [old for old in kept if (old["task"], old["seed"]) != (row["task"], row["seed"])]
    rows = sorted([*rows, row], key=lambda one: (one["task"], one["seed"]))
    versions = {name: version(name) for name in ("torch", "numpy", "gymnasium", "mujoco", "Box2D")}
    write_json(RESULTS, {"versions": versions, "processor": processor_family(), "threads": 1, "rows": rows})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(LIMITS), action="append", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--keep", type=Path, help="folder for snapshots and policies; default: a temporary one")
    arguments = parser.parse_args()
    reached = True
    with tempfile.TemporaryDirectory() as temporary:
        for task in arguments.task or sorted(LIMITS):
            for seed in arguments.seeds:
                row = measure(task, seed, arguments.keep or Path(temporary))
                record(row)
                reached = reached and row["reached"]
                print(
                    f"{task:12} seed {seed}  mean return {row['mean_return']:8.1f} (limit {row['limit']:.0f})  "
                    f"{row['total_env_steps']:>8} steps  {row['seconds']:6.1f} s  {row['stop_reason']}",
                    flush=True,
                )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())

"""The integrated system of the specification: math, games and tool calls for one policy, on one thread.

    python benchmarks/integration.py             # three seeds: benchmarks/results/integration.json
    python benchmarks/integration.py --seeds 1   # this one anew, the others as they are there

Success rates are of held-out tasks, before (the warm start) and after; seconds are of this process' own processor
time. Ends with exit code 1 where a seed has not gained in math and in games.
"""

import argparse
import asyncio
import os
import platform
import time
from pathlib import Path
from typing import Any

from loomrl import EnvironmentType, GymTrainingConfig, PPOConfig, create_integrated_rl_system
from loomrl.system.files import read_json, write_json
from loomrl.system.threads import processor_family

RESULTS = Path(__file__).parent / "results" / "integration.json"


async def train(seed: int, max_iterations: int) -> dict[str, Any]:
    """One seed, with the settings of `examples/gym/integrated_system.py`; more tasks tell more of what was learnt."""
    gym_config = GymTrainingConfig(
        environments_per_type=3,
        enabled_env_types=[EnvironmentType.MATH, EnvironmentType.GAME, EnvironmentType.TOOLCALL],
        curriculum_learning=True,
        target_success_rate=0.8,
        evaluation_tasks=400,
    )
    ppo_config = PPOConfig(total_episodes=10000, batch_size=64, learning_rate=3e-4, seed=seed)
    begun = time.process_time()
    integration = await create_integrated_rl_system(gym_config, ppo_config)
    warm = time.process_time()
    results = await integration.run_training_loop(max_iterations=max_iterations)
    integration.close()
    return {
        "seed": seed,
        "warm_start_seconds": round(warm - begun, 1),
        "training_seconds": round(time.process_time() - warm, 1),
        "num_episodes": results.num_episodes,
        "before": results.warm_start,
        "after": results.success_rates,
        "levels": results.difficulties,
        "curve": [iteration.success_rates for iteration in results.iterations[::10]],
    }


def main() -> int:
    """Train, write, judge."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--max-iterations", type=int, default=200)
    chosen = arguments.parse_args()
    rows = {row["seed"]: row for row in read_json(RESULTS)["seeds"]} if RESULTS.exists() else {}
    for seed in chosen.seeds:
        rows[seed] = asyncio.run(train(seed, chosen.max_iterations))
        print(rows[seed])
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "processor": processor_family()}
        write_json(RESULTS, {"machine": machine, "seeds": [rows[one] for one in sorted(rows)]})
    trained = [rows[seed] for seed in chosen.seeds]
    return int(any(row["after"][domain] <= row["before"][domain] for row in trained for domain in ("math", "game")))


if __name__ == "__main__":
    raise SystemExit(main())

"""What actors bring a gym's training: iterations with two of them on two cores beside iterations in one process.

    python benchmarks/nexus.py             # on a machine that does nothing else
    python benchmarks/nexus.py --rounds 1

Both begin with the same policy, which a warm start made. Seconds are medians over the iterations after the first ones;
the ratio is that of one process's to the actors'. Figures go to `benchmarks/results/nexus.json`.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from distributed import telling
from loomrl import EnvironmentType, GymPPOIntegration, GymTrainingConfig, NexusWorker, PPOConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.runs.stages.__main__ import ONE_THREAD
from loomrl.system.files import write_json
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.cluster import cluster
from loomrl.training.integrated import IntegrationResults
from machine import measured_on

RESULTS = Path(__file__).parent / "results" / "nexus.json"
NUM_WORKERS, ITERATIONS, WARM = 2, 20, 4
THREE = (EnvironmentType.MATH, EnvironmentType.GAME, EnvironmentType.TOOLCALL)
CASES: dict[str, tuple[dict[str, Any], int]] = {  # of GymTrainingConfig, and episodes of an iteration
    "math, 64 episodes": ({"enabled_env_types": (EnvironmentType.MATH,)}, 64),
    "math, games and tools, 64 episodes": ({"enabled_env_types": THREE}, 64),
    "math, games and tools, 256 episodes": ({"enabled_env_types": THREE}, 256),
}


def integration(case: str, policy: LanguagePolicy | None, **changes: Any) -> GymPPOIntegration:
    """With few held-out tasks: nothing is evaluated here."""
    settings, batch_size = CASES[case]
    config = GymTrainingConfig(**{"evaluation_tasks": 10, **settings, **changes})
    return GymPPOIntegration(config, PPOConfig(batch_size=batch_size, learning_rate=3e-4), policy=policy)


def warm_policy(case: str, folder: Path) -> Path:
    """What a warm start makes."""
    warm = integration(case, None)
    asyncio.run(warm.prepare())
    warm.ppo_trainer.policy.save(folder)
    warm.close()
    return folder


def trained(case: str, policy: Path, num_workers: int | None, path: Path) -> tuple[float, IntegrationResults]:
    """Seconds of an iteration, and what was learnt."""

    async def run() -> IntegrationResults:
        if num_workers is None:
            return await one.run_training_loop(max_iterations=ITERATIONS)
        async with NexusWorker(num_workers=num_workers).distribute_rl_training(one) as training:
            return await training.run_training_loop(max_iterations=ITERATIONS)

    path.unlink(missing_ok=True)
    with telling(path) as told, closing(integration(case, LanguagePolicy.load(policy), warm_start_accuracy=0.0)) as one:
        results = asyncio.run(run())
    times = [row["time"] for row in told if row["event"] == "metrics"]
    seconds = [after - before for before, after in zip(times, times[1:], strict=False)]
    return statistics.median(seconds[WARM:]), results


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Both, round by round."""
    with tempfile.TemporaryDirectory() as name:
        policy, path = warm_policy(case, Path(name) / "policy"), Path(name) / "events.jsonl"
        rows = [[trained(case, policy, workers, path) for workers in (None, NUM_WORKERS)] for _ in range(rounds)]
    ratios = [alone / shared for (alone, _), (shared, _) in rows]
    (_, alone), (_, shared) = rows[0]
    figures = {
        "seconds_one_process": statistics.median(seconds for (seconds, _), _ in rows),
        "seconds_two_actors": statistics.median(seconds for _, (seconds, _) in rows),
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "mean_score_one_process": mean_scores(alone),
        "mean_score_two_actors": mean_scores(shared),
        "rounds": rounds,
    }
    print(case, figures, flush=True)
    return figures


def mean_scores(results: IntegrationResults) -> dict[str, float]:
    """By domain, over all iterations."""
    domains = results.iterations[0].mean_scores
    return {name: statistics.mean(one.mean_scores[name] for one in results.iterations) for name in domains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    with cluster(DistributedConfig(num_learners=NUM_WORKERS)):
        figures = {case: measure(case, arguments.rounds) for case in arguments.cases}
    write_json(RESULTS, {"cases": figures, "measured_on": measured_on()})


if __name__ == "__main__":
    main()

"""What learners on one machine cost and bring; each figure goes to `benchmarks/results/distributed.json`.

    python benchmarks/distributed.py              # all of it, on a machine that does nothing else
    python benchmarks/distributed.py overhead     # one learner on Ray beside the stage's own process, with all cores
    python benchmarks/distributed.py speedup      # two learners with a core each beside one learner with one
    python benchmarks/distributed.py costs        # seconds of an environment step, a gradient step and an all-reduce

`overhead` and `speedup` train the same twice in each round, and compare steps per second between the first fifth of the
steps and the last one: without what starting takes. One learner on Ray ends with the same policy as the stage, or it
stops. Ends with exit code 1 where the overhead is 10 % or more, or the speed-up on Humanoid, where collecting takes
nearly all of the time, is below 1.7, in the median of the rounds.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.runs.stages.__main__ import ONE_THREAD
from loomrl.system import events
from loomrl.system.files import read_json, write_json
from loomrl.system.processors import keep_to, num_processors
from loomrl.system.threads import one_thread
from loomrl.training.config import DistributedConfig, TrainingConfig
from loomrl.training.distributed.cluster import cluster
from loomrl.training.job import TrainingJob
from loomrl.training.train import train_policy
from machine import measured_on
from process_group import ProcessGroup

RESULTS = Path(__file__).parent / "results" / "distributed.json"
WARM = 0.2  # of the steps
MOST_OVERHEAD, LEAST_SPEEDUP = 0.1, 1.7
Case = tuple[str, int, dict[str, Any]]  # environment, environment steps, PPO's parameters
CARTPOLE = {"num_envs": 16, "rollout_length": 128}
HALF_CHEETAH = {"num_envs": 8, "rollout_length": 256, "batch_size": 64, "n_epochs": 5}
OVERHEAD: dict[str, Case] = {
    "ppo_cartpole": ("CartPole-v1", 1_000_000, CARTPOLE),
    "ppo_halfcheetah": ("HalfCheetah-v5", 150_000, HALF_CHEETAH),
}
COLLECTING = {"num_envs": 32, "rollout_length": 128, "batch_size": 512, "n_epochs": 2}
SPEEDUP: dict[str, Case] = {
    "ppo_humanoid": ("Humanoid-v5", 100_000, COLLECTING),
    "ppo_halfcheetah": ("HalfCheetah-v5", 400_000, COLLECTING),
}
DOMINATED = "ppo_humanoid"  # by collecting: a step takes it ten times as long as HalfCheetah's
COSTS = {"ppo_cartpole": ("CartPole-v1", CARTPOLE), "ppo_halfcheetah": ("HalfCheetah-v5", HALF_CHEETAH)}
UPDATES, WARM_UPDATES = 20, 3
BETWEEN_WORK, WORK_SECONDS = 300, 1e-3  # all-reduces, and as much work before each as ten gradient steps are
GROUPS, LENGTHS = (2, 4), (100, 10_000, 100_000, 1_000_000)  # learners that all-reduce so many numbers


# --- trainings ---


def trained(case: Case, distributed: dict[str, Any] | None) -> tuple[float, str]:
    """Steps per second when training is under way, and the policy's digest."""
    environment, num_steps, parameters = case
    with snapshot_of(environment) as folder:
        config = TrainingConfig.model_validate(
            {
                "total_env_steps": num_steps,
                "validation": {"interval_env_steps": num_steps, "num_episodes": 1},
                "parameters": parameters,
                "distributed": distributed,
            }
        )
        with telling(folder / "events.jsonl") as told:
            report = train_policy(config, folder / "snapshot", folder / "out", folder / "home")
        return steps_per_second(told, num_steps), report.policy_digest


@contextmanager
def telling(path: Path) -> Iterator[list[dict[str, Any]]]:
    """What is told while the block runs, by way of a file; the list is filled at its end."""
    told: list[dict[str, Any]] = []
    os.environ[events.VARIABLE] = str(path)
    try:
        yield told
    finally:
        del os.environ[events.VARIABLE]
    told += (json.loads(line) for line in path.read_text().splitlines())


@contextmanager
def snapshot_of(environment: str) -> Iterator[Path]:
    """A folder that has it as `snapshot`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        take_snapshot(EnvironmentConfig(id=environment, fingerprint_episodes=1), folder, folder / "snapshot")
        yield folder


def steps_per_second(told: list[dict[str, Any]], num_steps: int) -> float:
    """From what training told."""
    rows = [row for row in told if row["event"] == "metrics" and "policy_loss" in row and row["step"] < num_steps]
    warm = [row for row in rows if row["step"] >= WARM * num_steps]
    return float((warm[-1]["step"] - warm[0]["step"]) / (warm[-1]["time"] - warm[0]["time"]))


def measure_overhead(rounds: int) -> dict[str, Any]:
    """Of one learner on Ray, for each case."""
    figures, all_cores = {}, {"CPU": num_processors()}
    for name, case in OVERHEAD.items():
        rows = []
        for _ in range(rounds):
            plain, digest = trained(case, None)
            on_ray, digest_on_ray = trained(case, {"num_learners": 1, "resources_per_learner": all_cores})
            assert digest_on_ray == digest, f"{name}: one learner on Ray learnt another policy"
            rows.append((plain, on_ray))
        figures[name] = compared(name, rows, "in_process", "one_learner_on_ray")
    return figures


def measure_speedup(rounds: int) -> dict[str, Any]:
    """Of two learners on Ray over one in the stage's process: joining every gradient, and once a rollout. Each learner
    steps its environments on one core."""
    figures = {}
    for name, case in SPEEDUP.items():
        _, _, parameters = case
        steps = parameters["num_envs"] * parameters["rollout_length"] // parameters["batch_size"]
        rows = []
        for _ in range(rounds):
            shared = [{"num_learners": 2, "sync_frequency": every} for every in (1, steps * parameters["n_epochs"])]
            keep_to(1)
            rows.append([trained(case, distributed)[0] for distributed in (None, *shared)])
            keep_to(math.inf)
        for at, kind in ((1, "every_step"), (2, "once_a_rollout")):
            pairs = [(row[0], row[at]) for row in rows]
            figures[f"{name}_{kind}"] = compared(f"{name}, {kind}", pairs, "one_learner", "two_learners")
    return figures


def compared(name: str, rows: list[tuple[float, float]], first: str, second: str) -> dict[str, Any]:
    """Steps per second of both, and the second's over the first's, round by round."""
    ratios = [two / one for one, two in rows]
    shown = ", ".join(f"{one:,.0f} and {two:,.0f}" for one, two in rows)
    print(f"{name}: {shown} steps/s, ratio {statistics.median(ratios):.3f}", flush=True)
    return {
        f"steps_per_second_{first}": statistics.median(one for one, _ in rows),
        f"steps_per_second_{second}": statistics.median(two for _, two in rows),
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "rounds": len(rows),
    }


# --- what a training is made of ---


def measure_costs(rounds: int) -> dict[str, Any]:
    """Seconds of one environment step and one gradient step of one learner, and of all-reduces over loopback: medians
    over updates, means over calls."""
    steps = {name: step_costs(environment, parameters, rounds) for name, (environment, parameters) in COSTS.items()}
    print(json.dumps(steps, indent=2), flush=True)
    reduces = {str(size): all_reduce_costs(size) for size in GROUPS}
    print(json.dumps(reduces, indent=2), flush=True)
    return {"steps": steps, "all_reduce_seconds": reduces}


def step_costs(environment: str, parameters: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Of PPO's updates after the first few."""
    with snapshot_of(environment) as folder:
        config = TrainingConfig.model_validate({"total_env_steps": 1_000_000, "parameters": parameters})
        job = TrainingJob.of(config, folder / "snapshot")
        algorithm: Any = job.algorithm(folder)
        rng = np.random.default_rng(0)
        collecting, learning, steps = [], [], 1.0
        with closing(job.environments_to_learn_from(algorithm.num_envs, "same_step")) as envs, one_thread(job.engine):
            collector = algorithm.collector(envs, 0)
            for _ in range(WARM_UPDATES + rounds * UPDATES):
                began = time.perf_counter()
                trajectory = collector.collect(algorithm.rollout_length, rng)
                collected = time.perf_counter()
                steps = algorithm.update(trajectory, rng)["num_gradient_steps"]
                collecting.append((collected - began) / trajectory.num_transitions)
                learning.append((time.perf_counter() - collected) / steps)
    return {
        "seconds_per_environment_step": statistics.median(collecting[WARM_UPDATES:]),
        "seconds_per_gradient_step": statistics.median(learning[WARM_UPDATES:]),
        "batch_size": algorithm.config.batch_size,
        "gradient_steps_per_update": steps,
        "environment_steps_per_update": algorithm.num_envs * algorithm.rollout_length,
        "num_parameters": int(algorithm.policy.parameters.size),
    }


def all_reduce_costs(size: int) -> dict[str, float]:
    """Seconds by how many float32 are summed over so many processes."""
    with ProcessGroup(size) as group:
        first, *_ = group.run(all_reduces)
    return first


def all_reduces() -> dict[str, float]:
    """One process's part: mean seconds, waiting for who is late included, with work between as in learning."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    found = {}
    for length in LENGTHS:
        vector, seconds = torch.ones(length), []
        for _ in range(BETWEEN_WORK):
            until = time.perf_counter() + WORK_SECONDS
            while time.perf_counter() < until:
                vector.fill_(1.0)
            began = time.perf_counter()
            dist.all_reduce(vector)
            seconds.append(time.perf_counter() - began)
        found[str(length)] = statistics.mean(seconds[10:])
    return found


MEASURES = {"overhead": measure_overhead, "speedup": measure_speedup, "costs": measure_costs}
ON_RAY = ("overhead", "speedup")


def record(kind: str, figures: dict[str, Any]) -> None:
    """Replace what the results say of one kind."""
    kept = read_json(RESULTS) if RESULTS.exists() else {}
    write_json(RESULTS, {**kept, kind: {"figures": figures, "measured_on": measured_on()}})


def reached(kind: str, figures: dict[str, Any]) -> bool:
    """Whether what was measured is good enough; costs are what they are."""
    if kind == "costs":
        return True
    least, prefix = (LEAST_SPEEDUP, DOMINATED) if kind == "speedup" else (1.0 - MOST_OVERHEAD, "")
    return all(one["ratio"]["median"] > least for name, one in figures.items() if name.startswith(prefix))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*MEASURES, []], metavar="KIND", help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    missed = 0
    for kind in arguments.kinds or MEASURES:
        with cluster(DistributedConfig()) if kind in ON_RAY else nullcontext():  # one for all trainings
            figures = MEASURES[kind](arguments.rounds)
        record(kind, figures)
        missed += not reached(kind, figures)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

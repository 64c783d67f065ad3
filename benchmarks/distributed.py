"""What learning on Ray costs where one learner does it: `python benchmarks/distributed.py`.

Each round trains the same twice, in the stage's own process and by one learner on Ray, and compares steps per second
between the first fifth of the steps and the last one: without what starting takes. Medians, least and most of the
ratios over the rounds go to `benchmarks/results/distributed.json`. Both end with the same policy, or it stops.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from loomrl import events
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshot import take_snapshot
from loomrl.files import write_json
from loomrl.processors import num_processors
from loomrl.stages.__main__ import ONE_THREAD
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy

RESULTS = Path(__file__).parent / "results" / "distributed.json"
WARM = 0.2  # of the steps
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # environment, environment steps, PPO's parameters
    "ppo_cartpole": ("CartPole-v1", 3_000_000, {"num_envs": 16, "rollout_length": 128}),
    "ppo_halfcheetah": ("HalfCheetah-v5", 200_000, {"num_envs": 8, "rollout_length": 256}),
}


def trained(environment: str, num_steps: int, parameters: dict[str, Any], learners: int | None) -> tuple[float, str]:
    """Steps per second when training is under way, and the policy's digest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        take_snapshot(EnvironmentConfig(id=environment, fingerprint_episodes=1), folder, folder / "snapshot")
        config = TrainingConfig.model_validate(
            {
                "total_env_steps": num_steps,
                "validation": {"interval_env_steps": num_steps, "num_episodes": 1},
                "parameters": parameters,
                "distributed": None if learners is None else {"num_learners": learners},
            }
        )
        os.environ[events.VARIABLE] = str(folder / "events.jsonl")
        report = train_policy(config, folder / "snapshot", folder / "out", folder / "home")
        return steps_per_second(folder / "events.jsonl", num_steps), report.policy_digest


def steps_per_second(path: Path, num_steps: int) -> float:
    """From what training told."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in told if row["event"] == "metrics" and "policy_loss" in row and row["step"] < num_steps]
    warm = [row for row in rows if row["step"] >= WARM * num_steps]
    return float((warm[-1]["step"] - warm[0]["step"]) / (warm[-1]["time"] - warm[0]["time"]))


def measure(case: str, rounds: int) -> dict[str, Any]:
    """One case's figures."""
    here, there = [], []
    for _ in range(rounds):
        (plain, digest), (on_ray, digest_on_ray) = trained(*CASES[case], None), trained(*CASES[case], 1)
        assert digest_on_ray == digest, f"{case}: one learner on Ray learnt another policy"
        here.append(plain)
        there.append(on_ray)
        print(f"{case}: {plain:,.0f} steps/s in the stage's process, {on_ray:,.0f} on Ray ({on_ray / plain:.3f})")
    ratios = [one / other for one, other in zip(there, here, strict=True)]
    return {
        "steps_per_second_in_process": statistics.median(here),
        "steps_per_second_one_learner_on_ray": statistics.median(there),
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    figures = {case: measure(case, arguments.rounds) for case in arguments.cases}
    machine = {"cores": num_processors(), "machine": platform.machine(), "python": platform.python_version()}
    write_json(RESULTS, {"overhead_of_one_learner": figures, "measured_on": machine})


if __name__ == "__main__":
    main()

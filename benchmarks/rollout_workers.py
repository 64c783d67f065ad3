"""What rollout workers change in a learner's speed: `python benchmarks/rollout_workers.py`.

Each round trains the same in one process, and by one learner on Ray with rollout workers that wait for it or collect
ahead, and compares steps per second after the first fifth of the steps: without what starting takes. Medians, least and
most of the ratios over the rounds go to `benchmarks/results/rollout_workers.json`. Workers that wait give the policy of
one process, or it stops.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from distributed import Case, trained
from loomrl.runs.stages.__main__ import ONE_THREAD
from loomrl.system.files import write_json
from machine import measured_on

RESULTS = Path(__file__).parent / "results" / "rollout_workers.json"
CASES: dict[str, Case] = {
    "ppo_cartpole": ("CartPole-v1", 1_000_000, {"num_envs": 16, "rollout_length": 128}),
    "ppo_halfcheetah": ("HalfCheetah-v5", 200_000, {"num_envs": 8, "rollout_length": 256}),
}


def settings(workers: int) -> dict[str, dict[str, Any] | None]:
    """What is compared, by name; the first is what the others are compared with."""
    base = {"num_learners": 1, "rollout_workers_per_learner": workers}
    return {"one_process": None, "workers": base, "workers_ahead": base | {"max_staleness": 1}}


def measure(case: str, rounds: int, workers: int, share: float) -> dict[str, Any]:
    """Ratios of steps per second to one process's, round by round."""
    environment, num_steps, parameters = CASES[case]
    shortened = (environment, int(num_steps * share), parameters)
    ratios: dict[str, list[float]] = {}
    alone = []
    for _ in range(rounds):
        found = {name: trained(shortened, distributed) for name, distributed in settings(workers).items()}
        if found["workers"][1] != found["one_process"][1]:
            raise SystemExit(f"{case}: workers learnt another policy than one process")
        alone.append(found["one_process"][0])
        for name in ("workers", "workers_ahead"):
            ratios.setdefault(name, []).append(found[name][0] / found["one_process"][0])
    summary = {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in ratios.items()
    }
    return {"one_process_steps_per_second": statistics.median(alone), "workers": workers, "ratios": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    given = (arguments.rounds, arguments.workers, arguments.share)
    results = {case: measure(case, *given) for case in arguments.case or CASES}
    write_json(arguments.output, {"measured_on": measured_on(), "rounds": arguments.rounds, "cases": results})
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

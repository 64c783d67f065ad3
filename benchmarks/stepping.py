"""How fast each back-end steps environments, as ratios to one after the other: `python benchmarks/stepping.py`.

Every round times all back-ends of a case one after the other on the same random actions; the ratio is taken within the
round. Medians, least and most over the rounds go to `benchmarks/results/stepping.json`.
"""

import argparse
import os
import platform
import statistics
import time
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.system.files import write_json
from loomrl.system.processors import num_processors

RESULTS = Path(__file__).parent / "results" / "stepping.json"
CLASSIC = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")
ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "InvertedPendulum-v5")
CASES = [(name, size) for name in CLASSIC for size in (8, 64, 1024)] + [
    (name, size) for name in ROBOTS for size in (8, 64)
]
BACKENDS = ("serial", "batched", "mujoco", "device", "envpool", "processes")
MOST_PROCESSES = 8


def vectors(name: str, num_envs: int, stack: ExitStack) -> dict[str, Any]:
    """Back-end -> environments that have been reset and stepped before, of those that have this environment."""
    recipe = Recipe(resolve(EnvironmentConfig(id=name), Path(".")))
    made = {}
    for backend in BACKENDS:
        if backend == "processes" and num_envs > MOST_PROCESSES:
            continue
        try:
            envs = stack.enter_context(closing(make_vector(recipe, num_envs, "same_step", backend)))
        except ConfigError:
            continue  # it does not have the environment, or EnvPool is not installed
        envs.reset(seed=0)
        made[backend] = envs
    return made


def seconds(envs: Any, actions: list[Any], least_seconds: float) -> float:
    """Seconds of one step of all environments."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < least_seconds:
        for action in actions:
            envs.step(action)
        count += len(actions)
    return (time.perf_counter() - started) / count


def measure(name: str, num_envs: int, rounds: int, least_seconds: float) -> dict[str, Any]:
    """Steps per second and the ratio to `serial`, for every back-end of one case."""
    with ExitStack() as stack:
        made = vectors(name, num_envs, stack)
        made["serial"].action_space.seed(0)
        actions = [made["serial"].action_space.sample() for _ in range(10)]
        given = dict.fromkeys(made, actions) | {"device": [torch.from_numpy(action) for action in actions]}
        rows = []
        for number in range(rounds + 1):
            row = {backend: seconds(envs, given[backend], least_seconds) for backend, envs in made.items()}
            if number:  # the first round warms up
                rows.append(row)
    return {backend: _summary([row["serial"] / row[backend] for row in rows], [num_envs / row[backend] for row in rows])
            for backend in made}  # fmt: skip


def _summary(ratios: list[float], speeds: list[float]) -> dict[str, Any]:
    return {
        "ratio_to_serial": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "steps_per_second": statistics.median(speeds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each back-end in each round")
    parser.add_argument("--only", help="the cases of one environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before, cases = os.getloadavg()[0], []
    for name, num_envs in CASES:
        if arguments.only in (None, name):
            found = measure(name, num_envs, arguments.rounds, arguments.seconds)
            cases.append({"environment": name, "num_envs": num_envs, "backends": found})
            shown = ", ".join(f"{backend} {one['ratio_to_serial']['median']:.2f}" for backend, one in found.items())
            print(f"{name} x {num_envs}: {shown}", flush=True)
    if arguments.only is None:
        write_json(RESULTS, {"cases": cases, "rounds": arguments.rounds, **_machine(before)})


def _machine(load: float) -> dict[str, Any]:
    names = ("gymnasium", "numba", "numpy", "mujoco", "torch")
    return {
        "cores": num_processors(),
        "processor": platform.processor() or platform.machine(),
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }


if __name__ == "__main__":
    main()

"""PPO with environments on the device: `python benchmarks/device.py`. On the GPU where there is one, else on the CPU.

For CartPole-v1 at several numbers of environments: environment steps per second of training (the training loop,
learning included), of rollouts without learning, and of stepping alone with actions that lie ready. Rounds take turns;
medians, least and most go to `benchmarks/results/device.json`, which names the device.

`limits` are what this device could do at most with the operations that one update (a rollout and what is learnt from
it) dispatches, each counted as it runs:
- launches: their number times the seconds of one, measured on an addition to a single number, without waiting between;
- bytes: what they read and write, over the bandwidth of a copy from memory to memory that no cache holds;
- arithmetic: floating-point operations of matrix products, over the rate of a large product in float32.
Each alone would allow so many steps per second; the least of them is the limit, and `fraction` is what was reached of
it. It bounds these operations as they are: fewer of them (fused by a compiler, or launched together as a graph) would
raise the first two, and what a cache holds is not bound by the second.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from loomrl.algorithms import ppo
from loomrl.algorithms.ppo.device import DevicePPO
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.device import DeviceVectorEnv, best_device, device_name
from loomrl.environment.vector.recipe import Recipe
from loomrl.system.files import write_json
from loomrl.system.processors import num_processors
from loomrl.training.loop import TrainingLoop

RESULTS = Path(__file__).parent / "results" / "device.json"
TASK = "CartPole-v1"
NUM_ENVS = {"cuda": (64, 1024, 4096, 16384, 65536), "cpu": (64, 1024, 4096)}
ROLLOUT_LENGTH, NUM_MINIBATCHES, NUM_EPOCHS = 32, 8, 4
DEVICE = best_device()
FLOAT32 = 4  # bytes


def recipe() -> Recipe:
    return Recipe(resolve(EnvironmentConfig(id=TASK), Path(".")))


def environments(num_envs: int, mode: Any = "same_step") -> DeviceVectorEnv:
    envs = make_vector(recipe(), num_envs, mode, "device")
    assert isinstance(envs, DeviceVectorEnv)
    return envs


def learner(num_envs: int) -> DevicePPO:
    config = ppo.Config(
        engine="device",
        num_envs=num_envs,
        rollout_length=ROLLOUT_LENGTH,
        batch_size=num_envs * ROLLOUT_LENGTH // NUM_MINIBATCHES,
        n_epochs=NUM_EPOCHS,
    )
    with closing(environments(1)) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
    algorithm = ppo.build(config, *spaces, seed=1, total_env_steps=10**12)
    assert isinstance(algorithm, DevicePPO)
    return algorithm


# --- what is timed ----------------------------------------------------------------------------------------------


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], least_seconds: float) -> float:
    """Seconds of one call, the device waited for before and after all of them."""
    count = 0
    wait()
    started = time.perf_counter()
    while count == 0 or time.perf_counter() - started < least_seconds:
        work()
        count += 1
        if DEVICE.type == "cuda" and count % 10 == 0:
            wait()  # else the queue grows while the clock says too little
    wait()
    return (time.perf_counter() - started) / count


class Training:
    """The training loop at one number of environments, update by update."""

    def __init__(self, num_envs: int) -> None:
        self._left = 0
        self._loop = TrainingLoop(
            learner(num_envs), environments, seed=1, total_env_steps=None, segment_env_steps=None, validation=None,
            on_update=self._told,
        )  # fmt: skip
        self._seconds: list[float] = []

    def _told(self, _row: dict[str, Any]) -> None:
        self._seconds.append(time.perf_counter())  # its metrics have come over, so the device has finished
        if len(self._seconds) > 1 and self._seconds[-1] >= self._until:
            self._loop.stop("measured")

    def __call__(self, least_seconds: float) -> float:
        """Seconds of one update, the first of each call left out: it makes the environments."""
        self._seconds.clear()
        self._loop.stop_reason, self._until = None, time.perf_counter() + least_seconds
        for _ in self._loop.run():
            pass
        return (self._seconds[-1] - self._seconds[0]) / (len(self._seconds) - 1)


def measure(num_envs: int, rounds: int, least_seconds: float, rates: dict[str, float]) -> dict[str, Any]:
    """Steps per second of all that is timed, and of the limits."""
    training, algorithm, envs = Training(num_envs), learner(num_envs), environments(num_envs)
    collector = algorithm.collector(environments(num_envs), 1)
    envs.reset(seed=1)
    actions = torch.from_numpy(envs.action_space.sample()).to(DEVICE)
    rows = []
    for number in range(rounds + 1):
        row = {
            "training": training(least_seconds),
            "rollouts": seconds_of(lambda: collect(collector), least_seconds),
            "stepping": ROLLOUT_LENGTH * seconds_of(lambda: envs.step(actions), least_seconds),
        }
        if number:  # the first round warms up
            rows.append(row)
    steps = num_envs * ROLLOUT_LENGTH
    speeds = {name: _summary([steps / row[name] for row in rows]) for name in rows[0]}
    shares = [row["stepping"] / row["training"] for row in rows]
    found = limits(count(algorithm, num_envs), steps, rates)
    return {
        "num_envs": num_envs,
        "steps_per_second": speeds,
        "training_to_stepping": _summary(shares),
        "limits": found,
        "fraction": speeds["training"]["median"] / min(found["steps_per_second"].values()),
    }


def collect(collector: Any) -> Any:
    collector.finished.clear()
    return collector.collect(ROLLOUT_LENGTH, None)


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


# --- limits -----------------------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Operations that write tensors on the device, and the bytes they read and write. Views do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket not in VIEWS:
            read = {name: value for name, value in (kwargs or {}).items() if name != "out"}
            moved = size_of((args, read)) + size_of(result)
            self.launches, self.bytes = self.launches + (moved > 0), self.bytes + moved
        return result


def size_of(tree: Any) -> int:
    """Bytes of the tensors on the device, each once."""
    tensors = [part for part in tree_leaves(tree) if isinstance(part, torch.Tensor) and part.device.type == DEVICE.type]
    distinct = {(part.data_ptr(), part.shape): part.numel() * part.element_size() for part in tensors}
    return sum(distinct.values())


VIEWS = {torch.ops.aten.detach, torch.ops.aten._unsafe_view, torch.ops.aten.empty, torch.ops.aten.empty_like}


def count(algorithm: DevicePPO, num_envs: int) -> dict[str, float]:
    """What one update dispatches."""
    collector, rng = algorithm.collector(environments(num_envs), 2), np.random.default_rng(0)
    with FlopCounterMode(display=False) as flops, Counter() as rollout:
        trajectory = collect(collector)
    with FlopCounterMode(display=False) as more, Counter() as learning:
        algorithm.update(trajectory, rng)
    return {
        "launches_of_rollout": rollout.launches,
        "launches": rollout.launches + learning.launches,
        "bytes": rollout.bytes + learning.bytes,
        "flops": flops.get_total_flops() + more.get_total_flops(),
    }


def limits(counts: dict[str, float], steps: int, rates: dict[str, float]) -> dict[str, Any]:
    """Steps per second that each of the device's resources would allow alone."""
    allowed = {name: steps * rate / counts[name] for name, rate in rates.items()}
    return {"one_update": counts, "steps_per_second": allowed, "least": min(allowed, key=lambda name: allowed[name])}


def rates() -> dict[str, float]:
    """Launches, bytes of a copy, and floating-point operations of a product, each in a second."""
    on_gpu = DEVICE.type == "cuda"
    small = torch.zeros(1, device=DEVICE)
    large = torch.zeros((2**30 if on_gpu else 2**26) // FLOAT32, device=DEVICE)
    target, size = torch.empty_like(large), 8192 if on_gpu else 1024
    matrix = torch.ones(size, size, device=DEVICE)

    def hundred() -> None:
        for _ in range(100):
            small.add_(1.0)

    return {
        "launches": 100 / shortest(hundred),
        "bytes": 2 * FLOAT32 * large.numel() / shortest(lambda: target.copy_(large)),
        "flops": 2 * size**3 / shortest(lambda: matrix @ matrix),
    }


def shortest(work: Callable[[], object]) -> float:
    return min(seconds_of(work, 0.2) for _ in range(5))


# --- the command ------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each that is timed, in each round")
    parser.add_argument("--num-envs", type=int, nargs="+", default=NUM_ENVS[DEVICE.type])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before, found, cases = os.getloadavg()[0], rates(), []
    print(f"{TASK} on {device_name(DEVICE)}; in a second: " + ", ".join(f"{found[name]:.3g} {name}" for name in found))
    for num_envs in arguments.num_envs:
        case = measure(num_envs, arguments.rounds, arguments.seconds, found)
        cases.append(case)
        speeds = ", ".join(f"{name} {one['median']:,.0f}" for name, one in case["steps_per_second"].items())
        least = case["limits"]["least"]
        print(f"{num_envs} environments, steps/s: {speeds}; {case['fraction']:.0%} of what {least} allow", flush=True)
    settings = {"rollout_length": ROLLOUT_LENGTH, "num_minibatches": NUM_MINIBATCHES, "num_epochs": NUM_EPOCHS}
    write_json(
        arguments.output,
        {"environment": TASK, "settings": settings, "in_a_second": found, "cases": cases,
         "rounds": arguments.rounds, **_machine(before)},
    )  # fmt: skip


def _machine(load: float) -> dict[str, Any]:
    return {
        "device": device_name(DEVICE),
        "cores": num_processors(),
        "processor": platform.processor() or platform.machine(),
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        "python": platform.python_version(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }


if __name__ == "__main__":
    main()

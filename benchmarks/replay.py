"""How fast and how large replay is: `python benchmarks/replay.py`. Writes `benchmarks/results/replay.json`.

Speed: a million HalfCheetah-like transitions, batches of 256, each contender in turn within every round, so that what
else the machine does falls on all alike; ratios are medians over rounds. The baselines are plain numpy: for prioritised
replay `Generator.choice` with probabilities over the array of priorities, for uniform replay the fancy indexing that
stable-baselines3's ReplayBuffer does, both with every next observation kept beside its observation.

Memory: ten million such transitions in mapped files, written and sampled by a process that may have at most half of
their bytes as memory of its own (RLIMIT_DATA); its samples are compared with what was written, after the files left the
page cache. The same buffer in memory must fail there. To limit the page cache as well:
`systemd-run --scope -p MemoryMax=600M python benchmarks/replay.py`.
"""

import argparse
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.algorithms.replay.storage import MappedStorage, MemoryStorage, Storage
from loomrl.errors import ArtifactError
from loomrl.system.files import read_json, write_json
from loomrl.types import Trajectory

RESULTS = Path(__file__).parent / "results" / "replay.json"
BATCH, ALPHA, BETA, EPSILON = 256, 0.6, 0.4, 1e-6
SMALLEST_LIMIT = 300_000_000  # bytes: under it the interpreter and the compiler do not start
EPISODE = 1000  # steps, as HalfCheetah's time limit has it


def spec(capacity: int, num_envs: int) -> ReplaySpec:
    """Observations of 17, actions of 6 numbers."""
    return ReplaySpec(capacity, num_envs, (17,), np.float32, (6,), np.float32)


def stretch(layout: ReplaySpec, first_row: int, num_rows: int) -> Trajectory:
    """Rows that follow from their numbers: number r * B + b stands in every component; episodes of 1000 steps."""
    rows = np.arange(first_row, first_row + num_rows)
    number = (rows[:, None] * layout.num_envs + np.arange(layout.num_envs)).astype(np.float32)  # (T, B)
    obs = np.repeat(number[..., None], 17, -1)
    truncated = np.repeat((rows % EPISODE == EPISODE - 1)[:, None], layout.num_envs, 1)
    next_obs = np.where(truncated[..., None], -obs, obs + layout.num_envs)
    return Trajectory(
        obs, obs[..., :6].copy(), number.astype(np.float64), np.zeros_like(truncated), truncated, next_obs
    )


def fill(buffer: ReplayBuffer | PrioritizedReplay) -> None:
    """Up to the capacity."""
    for first_row in range(0, buffer.spec.num_rows, EPISODE):
        buffer.add(stretch(buffer.spec, first_row, min(EPISODE, buffer.spec.num_rows - first_row)))


class NumpyReplay:
    """Everything twice, fancy indexing, priorities in one array."""

    def __init__(self, capacity: int) -> None:
        number = np.arange(capacity, dtype=np.float32)
        self.obs = np.repeat(number[:, None], 17, 1)[:, None]  # (P, 1, 17)
        self.next_obs = self.obs + 1
        self.action = self.obs[..., :6].copy()
        self.reward, self.done = number[:, None].copy(), np.zeros((capacity, 1), np.float32)
        self.priority = np.ones(capacity)  # (priority + epsilon)^alpha
        self.capacity = capacity

    def gather(self, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Arrays (N, ...)."""
        arrays = (self.obs, self.next_obs, self.action, self.reward, self.done)
        return tuple(array[index, np.zeros_like(index)] for array in arrays)

    def uniform(self, rng: np.random.Generator) -> None:
        """One batch, drawn and gathered."""
        self.gather(rng.integers(0, self.capacity, BATCH))

    def prioritised(self, rng: np.random.Generator, priority: np.ndarray) -> None:
        """One batch drawn by priority, its weights, and its new priorities."""
        share = self.priority / self.priority.sum()
        index = rng.choice(self.capacity, BATCH, p=share)
        self.gather(index)
        weight = (self.capacity * share[index]) ** -BETA
        weight /= weight.max()
        self.priority[index] = (priority + EPSILON) ** ALPHA


def measure(contenders: dict[str, Callable[[], object]], calls: dict[str, int], rounds: int) -> dict[str, list[float]]:
    """Seconds for one call, one figure per round, the contenders in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return seconds


def compared(seconds: dict[str, list[float]], ours: str, theirs: str) -> dict[str, Any]:
    """How many times as fast, round by round."""
    ratios = [their / our for our, their in zip(seconds[ours], seconds[theirs], strict=True)]
    return {
        "times_as_fast": round(statistics.median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
        "microseconds": {name: round(statistics.median(seconds[name]) * 1e6, 1) for name in (ours, theirs)},
    }


def speed(capacity: int, rounds: int) -> dict[str, Any]:
    """Sampling and updating beside numpy."""
    uniform, prioritised = ReplayBuffer(spec(capacity, 1)), PrioritizedReplay(spec(capacity, 1), ALPHA, EPSILON)
    plain, rng = NumpyReplay(capacity), np.random.default_rng(0)
    for buffer in (uniform, prioritised):
        fill(buffer)
    start = rng.exponential(size=capacity)
    prioritised.update_priorities(np.arange(capacity), start)
    plain.priority = (start + EPSILON) ** ALPHA
    new, out = rng.exponential(size=BATCH), Transitions.empty(spec(capacity, 1), BATCH)

    def ours() -> None:
        prioritised.update_priorities(prioritised.sample(BATCH, rng, BETA, out).index, new)

    contenders: dict[str, Callable[[], object]] = {
        "loomrl prioritised": ours,
        "numpy choice": lambda: plain.prioritised(rng, new),
        "loomrl uniform": lambda: uniform.sample(BATCH, rng, out),
        "numpy fancy indexing": lambda: plain.uniform(rng),
    }
    calls = {"loomrl prioritised": 500, "numpy choice": 5, "loomrl uniform": 500, "numpy fancy indexing": 500}
    measure(contenders, dict.fromkeys(calls, 2), 1)  # compiled and warm
    seconds = measure(contenders, calls, rounds)
    return {
        "transitions": capacity,
        "batch_size": BATCH,
        "rounds": rounds,
        "prioritised": compared(seconds, "loomrl prioritised", "numpy choice"),
        "uniform": compared(seconds, "loomrl uniform", "numpy fancy indexing"),
        "bytes_over_raw": {
            "uniform": round(uniform.nbytes / uniform.spec.raw_bytes, 4),
            "prioritised": round(prioritised.nbytes / uniform.spec.raw_bytes, 4),
        },
    }


# --- memory -----------------------------------------------------------------------------------------------------


def check(buffer: ReplayBuffer, batches: int) -> int:
    """Compare samples with the rows that were written; returns how many."""
    rng, num_envs = np.random.default_rng(1), buffer.spec.num_envs
    for _ in range(batches):
        batch = buffer.sample(BATCH, rng)
        number = batch.index.astype(np.float32)
        ended = batch.index // num_envs % EPISODE == EPISODE - 1
        successor = np.where(ended, -number, number + np.float32(num_envs))
        for array, value in ((batch.obs, number), (batch.action, number), (batch.next_obs, successor)):
            if not np.array_equal(array, np.repeat(value[:, None], array.shape[1], 1)):
                raise SystemExit("a sampled transition is not the one that was written")
    return batches * BATCH


def own_memory() -> int:
    """Bytes of memory of its own (not of files) that this process has now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process has")


def limited(capacity: int, folder: Path, limit: int, kind: str) -> None:
    """What the limited process does: write, save a state, let go of all cached pages, restore, sample."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    layout = spec(capacity, 8)
    storage: Storage = MappedStorage(folder) if kind == "mapped" else MemoryStorage()
    started = time.perf_counter()
    try:
        buffer = ReplayBuffer(layout, storage)
        fill(buffer)
    except ArtifactError as error:
        write_json(folder / "report.json", {"failed": str(error)})
        return
    written = time.perf_counter()
    state = buffer.state_dict()
    kept = sum(path.stat().st_size for path in folder.glob("*.bin"))
    for path in folder.glob("*.bin"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer.load_state_dict(state)
    restored = time.perf_counter()
    report = {
        "samples_checked": check(buffer, 2000),
        "bytes": kept,
        "own_memory_bytes": own_memory(),
        "microseconds_per_transition_written": round((written - started) / capacity * 1e6, 2),
        "microseconds_per_transition_sampled": round((time.perf_counter() - restored) / 2000 / BATCH * 1e6, 2),
    }
    write_json(folder / "report.json", report)


def memory(capacity: int) -> dict[str, Any]:
    """Ten million transitions where half of them would not fit."""
    raw = spec(capacity, 8).raw_bytes
    if (limit := raw // 2) < SMALLEST_LIMIT:
        raise SystemExit(f"--memory-capacity {capacity} is too small to be limited: numba itself takes up to that much")
    reports = {}
    for kind in ("mapped", "memory"):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk, where /tmp may be memory
            command = [sys.executable, __file__, "--limited", kind, "--folder", folder]
            command += ["--memory-capacity", str(capacity), "--limit", str(limit)]
            subprocess.run(command, check=True, timeout=3600)
            reports[kind] = read_json(Path(folder) / "report.json")
    if "failed" in reports["mapped"] or "failed" not in reports["memory"]:
        raise SystemExit(f"the limit does not separate files from memory: {reports}")
    return {
        "transitions": capacity,
        "raw_bytes": raw,
        "bytes_over_raw": round(reports["mapped"]["bytes"] / raw, 4),
        "limit_bytes": limit,
        **{name: value for name, value in reports["mapped"].items() if name != "bytes"},
        "in_memory_instead": reports["memory"]["failed"],
    }


def main() -> None:
    """Measure both, or be the limited process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--memory-capacity", type=int, default=10_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--limited", choices=["mapped", "memory"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limited:
        limited(options.memory_capacity, options.folder, options.limit, options.limited)
        return
    versions = {name: importlib.metadata.version(name) for name in ("numba", "numpy")}
    results = {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "versions": versions,
        "speed": speed(options.capacity, options.rounds),
        "memory": memory(options.memory_capacity),
    }
    write_json(options.output, results)
    print(options.output.read_text())


if __name__ == "__main__":
    main()

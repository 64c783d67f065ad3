"""What encryption costs a replay on the disk: `python benchmarks/sealed_replay.py` writes `results/sealed_replay.json`.

HalfCheetah-like transitions in mapped files, in encrypted ones that are in memory as a whole, and in encrypted ones of
which a tenth of the observations is. Batches of 256, each storage in turn within every round, ratios are medians over
rounds. The files stay in the page cache. Flushed is what a checkpoint after 100,000 further transitions writes.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.algorithms.replay.storage import MappedStorage, Storage
from loomrl.system.files import write_json
from loomrl.system.security.encryption import KEYS, new_entry
from replay import BATCH, fill, measure, spec, stretch

RESULTS = Path(__file__).parent / "results" / "sealed_replay.json"
SPARE = 0.2
FLUSHED = 100_000  # transitions


def storages(layout: ReplaySpec, folder: Path) -> dict[str, Storage]:
    """By name; what is in memory of the last is a tenth of the observations."""
    obs_bytes = layout.capacity * layout.obs_bytes
    return {
        "mapped": MappedStorage(folder / "mapped", SPARE),
        "sealed": SealedStorage(folder / "sealed", SPARE, cache_bytes=2 * obs_bytes),
        "sealed, a tenth in memory": SealedStorage(folder / "tenth", SPARE, cache_bytes=obs_bytes // 10),
    }


def seconds_to_flush(buffer: ReplayBuffer) -> float:
    """Of a checkpoint's worth of transitions."""
    layout = buffer.spec
    buffer.state_dict()
    buffer.add(stretch(layout, layout.num_rows, FLUSHED // layout.num_envs))
    started = time.perf_counter()
    buffer.state_dict()
    return round(time.perf_counter() - started, 3)


def measured(capacity: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Filling, flushing and sampling each storage."""
    layout, rng = spec(capacity, 8), np.random.default_rng(0)
    buffers = {name: ReplayBuffer(layout, storage) for name, storage in storages(layout, folder).items()}
    results: dict[str, Any] = {}
    for name, buffer in buffers.items():
        started = time.perf_counter()
        fill(buffer)
        results[name] = {"seconds_to_fill": round(time.perf_counter() - started, 2)}
        results[name]["seconds_to_flush"] = seconds_to_flush(buffer)
    out = Transitions.empty(layout, BATCH)
    contenders: dict[str, Callable[[], object]] = {
        name: lambda buffer=buffer: buffer.sample(BATCH, rng, out)  # type: ignore[misc]
        for name, buffer in buffers.items()
    }
    calls = {name: 50 if "tenth" in name else 500 for name in buffers}
    measure(contenders, calls, 1)  # compiled and warm
    seconds = measure(contenders, calls, rounds)
    for name, values in seconds.items():
        ratios = [value / mapped for value, mapped in zip(values, seconds["mapped"], strict=True)]
        results[name]["microseconds_per_batch"] = round(statistics.median(values) * 1e6, 1)
        results[name]["samples_per_second"] = round(BATCH / statistics.median(values))
        results[name]["time_over_mapped"] = round(statistics.median(ratios), 3)
    return results


def main() -> None:
    """Measure in a folder on the disk that holds this project, under a key of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ[KEYS] = new_entry("benchmark")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        results = measured(options.capacity, options.rounds, Path(folder))
    machine = {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    document = {"machine": machine, "transitions": options.capacity, "batch_size": BATCH, "rounds": options.rounds}
    write_json(options.output, document | {"flushed_transitions": FLUSHED, "storages": results})
    print(options.output.read_text())


if __name__ == "__main__":
    main()

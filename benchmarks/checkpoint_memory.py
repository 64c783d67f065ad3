"""What a checkpoint takes while a replay is full: `python benchmarks/checkpoint_memory.py` writes
`results/checkpoint_memory.json`.

SAC with HalfCheetah's spaces, ten million transitions in its replay and nothing learnt yet; then its training loop's
checkpoint is built and written, as training does. Memory is what Python and numpy allocate meanwhile (tracemalloc).
"""

import argparse
import tempfile
import time
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from loomrl.algorithms.base import TrainingContext
from loomrl.algorithms.sac import learner as sac
from loomrl.system.files import files_below, write_json
from loomrl.training.checkpoints import CheckpointStore
from loomrl.training.config import TrainingConfig
from loomrl.training.loop import TrainingLoop
from replay import EPISODE, spec, stretch

RESULTS = Path(__file__).parent / "results" / "checkpoint_memory.json"
OBSERVATION = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTION = gymnasium.spaces.Box(-1, 1, (6,), np.float32)


def filled(capacity: int, storage: str, folder: Path) -> sac.SAC:
    """SAC whose replay has gone round once."""
    config = sac.SACConfig.model_validate(
        {"num_envs": 8, "replay_capacity": capacity, "replay_storage": storage, "learning_starts": 2 * capacity}
    )
    interval = TrainingConfig(total_env_steps=capacity).checkpoint_interval_env_steps
    around = TrainingContext(folder, interval)
    algorithm = sac.build(config, OBSERVATION, ACTION, seed=0, total_env_steps=capacity, context=around)
    layout, rng = spec(capacity, 8), np.random.default_rng(0)
    for first_row in range(0, layout.num_rows, EPISODE):
        rows = stretch(layout, first_row, min(EPISODE, layout.num_rows - first_row))
        algorithm.update(replace(rows, extras={"squashed": rows.action}), rng)
    return algorithm


def no_environments(*_: Any) -> Any:
    """A loop between two segments has none."""
    raise SystemExit("no step should be taken")


def measure(capacity: int, storage: str) -> dict[str, Any]:
    """One checkpoint of a full replay."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # on a disk, where /tmp may be memory
        folder = Path(name)
        with closing(filled(capacity, storage, folder / "files")) as algorithm:
            loop = TrainingLoop(
                algorithm, no_environments, seed=0, total_env_steps=1, segment_env_steps=1, validation=None
            )
            with CheckpointStore(folder / "checkpoints", keep=1) as store:
                tracemalloc.start()
                started = time.perf_counter()
                store.save(loop.checkpoint())
                seconds = time.perf_counter() - started
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
        return {
            "memory_bytes": peak,
            "seconds": round(seconds, 2),
            "checkpoint_bytes": sum(path.stat().st_size for path in files_below(folder / "checkpoints")),
            "file_bytes": sum(path.stat().st_size for path in files_below(folder / "files")),
        }


def main() -> None:
    """Both kinds of storage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=10_000_000)
    capacity = parser.parse_args().capacity
    document: dict[str, Any] = {"transitions": capacity, "raw_bytes": spec(capacity, 8).raw_bytes}
    write_json(RESULTS, document | {storage: measure(capacity, storage) for storage in ("disk", "memory")})
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()

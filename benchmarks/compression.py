"""Bytes against return: PPO with two learners that send one another less and less, beside one learner.

    python benchmarks/compression.py                        # whatever is not measured yet, then the figures
    python benchmarks/compression.py --task cartpole --settings every_step int8 --seeds 1 2
    python benchmarks/compression.py --task none            # the figures again, from the rows there are

Learners are processes of a Gloo group, as Ray's are; each training is the life cycle's, and `final_return` its last
policy's in 32 greedy episodes. `training_return` is the mean over all updates of what the episodes that ended in each
returned: how fast was learnt. Rows go to `benchmarks/results/compression.json` one by one; delete it to measure all of
them again. Ends with exit code 1 unless, on both tasks, one setting that sends 100 times less than every step's
gradients loses no return: the 95 % interval of the paired differences lies above -5 % of the mean.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from loomrl.algorithms.peers import ALONE
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.statistics.intervals import bootstrap_interval, mean, paired_difference
from loomrl.system.files import read_json, write_json
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import DistributedConfig, TrainingConfig
from loomrl.training.distributed.learners.group import DistributedLearnerGroup
from loomrl.training.distributed.learners.learner import DistributedLearner, LearnerTask, create_task
from loomrl.training.job import TrainingJob
from machine import measured_on
from process_group import ProcessGroup

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "compression.json"
ALONE_SETTING, WHOLE = "one_learner", "every_step"
MARGIN, FEWER = 0.05, 100.0  # of the baseline's mean return; times
CONFIDENCE, REPLICATES = 0.95, 10_000
MEASURES = ("final_return", "training_return")
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is learnt, with how many gradient steps in an update, and from how many seeds."""

    name: str
    environment: str
    total_env_steps: int
    parameters: dict[str, Any]
    steps_per_update: int
    num_seeds: int


CARTPOLE = Task("cartpole", "CartPole-v1", 100_000, {"num_envs": 16, "rollout_length": 128}, 80, 10)
HALF_CHEETAH = Task(  # as in docs/benchmarks.md
    "halfcheetah",
    "HalfCheetah-v5",
    300_000,
    {
        "num_envs": 8,
        "rollout_length": 256,
        "batch_size": 64,
        "n_epochs": 5,
        "learning_rate": 5e-4,
        "initial_log_std": -1.0,
        "normalize_rewards": True,
    },
    160,
    5,
)
TASKS = {task.name: task for task in (CARTPOLE, HALF_CHEETAH)}
INT8 = {"method": "int8"}
# Name -> updates from one synchronisation to the next (None: every gradient step), and the rest of `distributed`.
SETTINGS: dict[str, tuple[float | None, dict[str, Any]]] = {
    ALONE_SETTING: (None, {"num_learners": 1}),
    WHOLE: (None, {}),
    "every_update": (1.0, {}),
    "every_epoch_int8": (0.0, {"compression": INT8}),
    "every_update_int8": (1.0, {"compression": INT8}),
    "every_epoch_int8_momentum": (0.0, {"compression": INT8, "outer_momentum": 0.5}),
    "every_update_int8_momentum": (1.0, {"compression": INT8, "outer_momentum": 0.5}),
    "every_update_int8_outer": (1.0, {"compression": INT8, "outer_learning_rate": 1.4}),
    "every_update_powersgd": (1.0, {"compression": {"method": "powersgd"}}),
    "every_update_top_k": (1.0, {"compression": {"method": "top_k", "share": 0.01}}),
    "every_5_updates_int8": (5.0, {"compression": INT8}),
    "every_5_updates_int8_momentum": (5.0, {"compression": INT8, "outer_momentum": 0.5}),
}


def distributed_of(task: Task, setting: str) -> dict[str, Any]:
    """The config's section."""
    updates, rest = SETTINGS[setting]
    if updates is None:
        return {"num_learners": 2, **rest}
    per_epoch = task.steps_per_update // task.parameters.get("n_epochs", 10)
    return {"num_learners": 2, "sync_frequency": int(updates * task.steps_per_update) or per_epoch, **rest}


# --- one training ---


def measure(task: Task, setting: str, seed: int, snapshot: Path, groups: dict[int, ProcessGroup]) -> Row:
    """One row of the results."""
    config = TrainingConfig.model_validate(
        {
            "seed": seed,
            "total_env_steps": task.total_env_steps,
            "checkpoint_interval_seconds": 1e9,  # the last one is saved
            "validation": {"interval_env_steps": task.total_env_steps, "num_episodes": 32},
            "parameters": task.parameters,
            "distributed": distributed_of(task, setting),
        }
    )
    shared = config.distributed
    assert shared is not None
    assignment = create_task(TrainingJob.of(config, snapshot), task.parameters["rollout_length"], None)
    started = time.monotonic()
    last = groups[shared.num_learners].run(learn, assignment)[0]
    updates = last.values["rows"]["rows"]
    return {
        "task": task.name,
        "setting": setting,
        "seed": seed,
        "sync_frequency": shared.sync_frequency,
        "compression": shared.compression.model_dump(),
        "bytes_per_update": float(np.mean([row.get("bytes_sent", 0.0) for row in updates])),
        "final_return": last.values["validation"]["rows"][-1]["mean_return"],
        "training_return": float(np.mean([row["episode_return"] for row in updates if "episode_return" in row])),
        "total_env_steps": last.values["env_steps"],
        "seconds": round(time.monotonic() - started, 1),
    }


def learn(assignment: LearnerTask) -> Checkpoint:
    """One learner's part of a training; what it leaves at the end."""
    left: list[Checkpoint] = []

    def call(method: str, *arguments: Any) -> None:
        if method == "submit_checkpoint":
            left.append(arguments[2])

    def peers(config: DistributedConfig, watchdog: Any) -> Any:
        return ALONE if config.num_learners == 1 else DistributedLearnerGroup(config, watchdog)

    DistributedLearner(assignment, dist.get_rank(), dist.get_world_size(), call).run(peers)
    return left[-1]


def run(tasks: list[Task], settings: list[str], seeds: list[int] | None) -> None:
    """Whatever is not there yet, seed by seed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        groups = {size: stack.enter_context(ProcessGroup(size)) for size in (1, 2)}
        for task in tasks:
            snapshot = taken(task, Path(folder))
            for seed in seeds or range(1, task.num_seeds + 1):
                for setting in settings:
                    if not any(same(row, task, setting, seed) for row in kept_rows()):
                        row = measure(task, setting, seed, snapshot, groups)
                        print({name: value for name, value in row.items() if name != "compression"}, flush=True)
                        record([*kept_rows(), row])


def taken(task: Task, folder: Path) -> Path:
    """A snapshot of its environment, in a folder within this one."""
    snapshot = folder / task.name
    take_snapshot(EnvironmentConfig(id=task.environment, fingerprint_episodes=1), PROJECT, snapshot)
    return snapshot


def same(row: Row, task: Task, setting: str, seed: int) -> bool:
    """Whether that is what a row is of."""
    return bool((row["task"], row["setting"], row["seed"]) == (task.name, setting, seed))


# --- figures ---


def kept_rows() -> list[Row]:
    """What is measured already."""
    rows: list[Row] = read_json(RESULTS)["rows"] if RESULTS.exists() else []
    return rows


def record(rows: list[Row]) -> None:
    """With what they show."""
    rows = sorted(rows, key=lambda row: (row["task"], [*SETTINGS].index(row["setting"]), row["seed"]))
    figures = {task: figures_of([row for row in rows if row["task"] == task]) for task in TASKS}
    versions = {name: version(name) for name in ("torch", "numpy", "gymnasium", "mujoco")}
    write_json(RESULTS, {"figures": figures, "rows": rows, "measured_on": measured_on(), "versions": versions})


def figures_of(rows: list[Row]) -> dict[str, Any]:
    """Of one task, by setting."""
    by_setting = {name: {row["seed"]: row for row in rows if row["setting"] == name} for name in SETTINGS}
    whole = by_setting[WHOLE]
    return {name: setting_figures(of, whole) for name, of in by_setting.items() if of}


def setting_figures(own: dict[int, Row], whole: dict[int, Row]) -> dict[str, Any]:
    """Bytes, returns and their differences to those of every step's gradients, over the seeds that both have."""
    seeds = sorted(own.keys() & whole.keys())
    num_bytes = float(np.mean([row["bytes_per_update"] for row in own.values()]))
    figures: dict[str, Any] = {"bytes_per_update": num_bytes, "seeds": len(own), "seeds_of_differences": len(seeds)}
    if whole and num_bytes:
        figures["times_fewer"] = float(np.mean([row["bytes_per_update"] for row in whole.values()])) / num_bytes
    for measure in MEASURES:
        values = [row[measure] for row in own.values()]
        interval = bootstrap_interval(values, mean, CONFIDENCE, REPLICATES, np.random.default_rng(0))
        figures[measure] = shown(interval)
        if seeds:
            pair = [[rows[seed][measure] for seed in seeds] for rows in (own, whole)]
            difference = paired_difference(*pair, CONFIDENCE, REPLICATES, np.random.default_rng(0))
            figures[f"{measure}_difference"] = shown(difference)
            figures[f"{measure}_loses_nothing"] = bool(difference.low >= -MARGIN * np.mean(pair[1]))
    return figures


def shown(interval: Any) -> dict[str, float]:
    """Estimate and ends."""
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}


def reached(figures: dict[str, Any]) -> bool:
    """Whether a setting sends that much less and loses nothing."""
    return any(
        one.get("times_fewer", 0.0) >= FEWER and one.get("final_return_loses_nothing", False)
        for one in figures.values()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=[*TASKS, "none"], action="append", help="default: all")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--seeds", type=int, nargs="+", help="default: as many as the task wants")
    options = parser.parse_args()
    run([TASKS[name] for name in options.task or TASKS if name != "none"], options.settings, options.seeds)
    record(kept_rows())
    return 0 if all(reached(figures) for figures in read_json(RESULTS)["figures"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())

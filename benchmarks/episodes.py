"""Do policies learn as well, and as fast, when episodes go on over checkpoints as when every checkpoint ended them?

    python -m benchmarks.episodes --before ../before/.venv/bin/python  # of a checkout of 0375cfd after `make setup`
    python -m benchmarks.episodes --show                               # what is kept, without training

Four tasks, ten seeds each, and more where ten could not tell a loss of 5 % from chance: of LunarLander and HalfCheetah
ten more, and where 20 of HalfCheetah could not either, 180 more, and then 200; each number was named before any of
these was trained.
They are trained alike by the code before (every checkpoint ended all episodes) and by this code, in turns. The kept
policy plays 50 episodes on seeds of the benchmark's own; a seed's score is their mean return.

For each task: the interquartile mean of both, and the lower bound and the two-sided 95 % interval of their difference,
by a bootstrap over seeds, whose two scores stay together, as shares of the mean before. An error of 5 % is shared by
all looks at a task: of n looks each bound is one of 1 - 0.05 / n. And how often as many seeds of two codes that learn
alike would meet the bound, drawn from the scores of both. Speed is processor time for a step, the median over the
pairs. Results are kept in `benchmarks/results/episodes.json`, each with the digests of the files it was made from, and
a run that is stopped goes on where it was. Ends with 1 where a bound is below -5 %, or no seed was trained by both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from loomrl.statistics.intervals import interquartile_mean
    from loomrl.system.files import canonical_json, sha256
except ImportError:  # the code before had other rooms
    from loomrl.evaluation.statistics import interquartile_mean
    from loomrl.files import canonical_json, sha256

Floats = NDArray[np.float64]
PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "episodes.json"
PAGE = PROJECT / "docs" / "benchmarks.md"  # its table has all settings that were tried
SOURCES = ("src/loomrl/algorithms", "src/loomrl/environment", "src/loomrl/training")
NUM_SEEDS = {"MountainCarContinuous-v0": 10, "HalfCheetah-v5": 400, "Hopper-v5": 10, "LunarLander-v3": 20}
_LOOKS = (10, 20, 200, 400)  # seeds after which somebody looked, and could have stopped
_ERROR = 0.05  # of a bound, over all looks
_TRIALS, _RESAMPLES = 400, 1_000  # of two codes that learn alike
WORST = -0.05  # of the interquartile mean before
FIRST_SEED, NUM_EPISODES = 5_000_000, 50
TASKS: dict[str, dict[str, Any]] = {
    "MountainCarContinuous-v0": {
        "total_env_steps": 200_704,
        "parameters": {"num_envs": 64, "rollout_length": 64, "normalize_rewards": True, "gamma": 0.999},
    },
    "HalfCheetah-v5": {
        "total_env_steps": 500_000,
        "parameters": {
            "num_envs": 8,
            "rollout_length": 256,
            "batch_size": 128,
            "n_epochs": 5,
            "learning_rate": 0.0005,
            "normalize_rewards": True,
        },
    },
    "Hopper-v5": {
        "total_env_steps": 600_000,
        "parameters": {
            "num_envs": 16,
            "rollout_length": 128,
            "batch_size": 256,
            "n_epochs": 6,
            "learning_rate": 0.0005,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "normalize_rewards": True,
        },
    },
    "LunarLander-v3": {
        "total_env_steps": 600_000,
        "parameters": {
            "num_envs": 16,
            "rollout_length": 256,
            "batch_size": 256,
            "n_epochs": 6,
            "learning_rate": 0.001,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "normalize_rewards": True,
        },
    },
}


def measure(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed of a task with the code that this process imports, and play it."""
    try:
        from loomrl.algorithms.policies.loading import load_policy
        from loomrl.environment.collecting.collector import run_episodes
        from loomrl.environment.snapshots.snapshot import take_snapshot
        from loomrl.system.threads import one_thread
    except ImportError:  # the code before had other rooms
        from loomrl.algorithms.policy import load_policy
        from loomrl.environment.collector import run_episodes
        from loomrl.environment.snapshot import take_snapshot
        from loomrl.training.threads import one_thread
    from loomrl.environment.config import EnvironmentConfig
    from loomrl.environment.make import make_envs
    from loomrl.training.config import TrainingConfig
    from loomrl.training.train import train_policy

    validation = {"interval_env_steps": 40_000, "num_episodes": 10}
    config = TrainingConfig.model_validate({"seed": seed, "validation": validation, **TASKS[task]})
    take_snapshot(EnvironmentConfig(id=task, fingerprint_episodes=1), PROJECT, folder / "snapshot")
    started = time.process_time()
    report = train_policy(config, folder / "snapshot", folder / "policy", home=folder / "home")
    cpu_seconds = time.process_time() - started
    policy = load_policy(folder / "policy")
    with one_thread(), closing(make_envs(folder / "snapshot", NUM_EPISODES, "disabled")) as envs:
        seeds = range(FIRST_SEED, FIRST_SEED + NUM_EPISODES)
        played = run_episodes(envs, policy.act, seeds, np.random.default_rng(0))
    return {
        "task": task,
        "seed": seed,
        "score": float(np.mean([one.episode_return for one in played])),
        "num_episodes": int(report.final_metrics["num_episodes"]),
        "env_steps": report.total_env_steps,
        "cpu_seconds": round(cpu_seconds, 2),
    }


def seeds_of(task: str) -> range:
    """With which a task is trained."""
    return range(1, NUM_SEEDS[task] + 1)


def key_of(task: str, seed: int, side: str) -> str:
    """Of a result: it is another one's with other settings."""
    return f"{task}/{sha256(canonical_json(TASKS[task]))[:12]}/{seed}/{side}"


def trained(python: Path, task: str, seed: int) -> dict[str, Any]:
    """`measure` by another interpreter, which imports the LoomRL that is installed there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), __file__, "--measure", task, str(seed), folder]
        lines = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def compare(store: Any, before: Path) -> None:
    """Train what is not kept yet."""
    for task in TASKS:
        for seed in seeds_of(task):
            for side, python, sources in (("before", before, ()), ("after", Path(sys.executable), SOURCES)):
                store.made(key_of(task, seed, side), sources, partial(trained, python, task, seed))
                print(side, store.values()[key_of(task, seed, side)], flush=True)


def summary(task: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The figures of the seeds that both sides have; None without two."""
    names = [(key_of(task, seed, "before"), key_of(task, seed, "after")) for seed in seeds_of(task)]
    pairs = [(rows[before], rows[after]) for before, after in names if before in rows and after in rows]
    return figures(pairs, num_looks(task)) if len(pairs) > 1 else None


def num_looks(task: str) -> int:
    """How often somebody looked at a task, or will have."""
    return sum(look <= NUM_SEEDS[task] for look in _LOOKS)


def figures(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], looks: int) -> dict[str, Any]:
    """What some seeds' results, before and after, say together, at one of so many looks."""
    scores = np.array([[before["score"], after["score"]] for before, after in pairs])  # (N, 2)
    drawn = np.random.default_rng(0).integers(len(scores), size=(10_000, len(scores)))
    before, after = (float(interquartile_mean(scores[:, side])) for side in range(2))
    moved = [interquartile_mean(scores[one, 1]) - interquartile_mean(scores[one, 0]) for one in drawn]
    shares = np.array(moved) / abs(before)
    return {
        "num_seeds": len(pairs),
        "before": before,
        "after": after,
        "difference": (after - before) / abs(before),
        "lower_bound": float(np.quantile(shares, _ERROR / looks)),
        "interval": np.quantile(shares, [0.025, 0.975]).tolist(),
        "episodes_before": sum(old["num_episodes"] for old, _ in pairs),
        "episodes_after": sum(new["num_episodes"] for _, new in pairs),
        "cpu_time_per_step": float(np.median([new["cpu_seconds"] / old["cpu_seconds"] for old, new in pairs])),
    }


def chance_of_meeting(scores: Floats, num_seeds: int, looks: int) -> float:
    """How often that many seeds of two codes that learn alike meet the bound, by scores, (N,), that one of them got."""
    rng, met = np.random.default_rng(0), 0
    for _ in range(_TRIALS):
        pairs = rng.choice(scores, (num_seeds, 2))
        drawn = pairs[rng.integers(num_seeds, size=(_RESAMPLES, num_seeds))]
        means = interquartile_mean(drawn.swapaxes(1, 2))
        shares = (means[:, 1] - means[:, 0]) / abs(float(interquartile_mean(pairs[:, 0])))
        met += bool(np.quantile(shares, _ERROR / looks) >= WORST)
    return met / _TRIALS


def section(rows: dict[str, dict[str, Any]]) -> str:
    """The table of all settings that were ever tried, and of each look at them, for the page."""
    from benchmarks.page import table

    found: dict[tuple[str, str], dict[int, dict[str, dict[str, Any]]]] = {}
    for key, row in rows.items():
        task, settings, seed, side = key.split("/")
        found.setdefault((task, settings), {}).setdefault(int(seed), {})[side] = row
    cells = []
    for (task, settings), seeds in sorted(found.items()):
        is_current = key_of(task, 1, "after").split("/")[1] == settings
        for count in sorted({min(look, len(seeds)) for look in _LOOKS}):
            pairs = [(one["before"], one["after"]) for _, one in sorted(seeds.items())[:count] if len(one) == 2]
            of = figures(pairs, num_looks(task))
            ends = f"{of['interval'][0]:+.1%} to {of['interval'][1]:+.1%}"
            steps = f"{pairs[0][1]['env_steps']:,}{'' if is_current else ', given up'}"
            numbers = [f"{of['before']:.1f}", f"{of['after']:.1f}", f"{of['difference']:+.1%}"]
            both = np.array([row["score"] for pair in pairs for row in pair])
            chance = f"{chance_of_meeting(both, len(pairs), num_looks(task)):.0%}" if is_current else ""
            cells.append([task, steps, str(len(pairs)), *numbers, f"{of['lower_bound']:+.1%}", ends, chance])
    heads = ["task", "steps", "seeds", "before", "after", "difference", "lower bound", "95 % interval", "if alike"]
    missing = [
        f"Of {task} {of['num_seeds']} of {num_seeds} seeds are trained so far: that row decides nothing yet."
        for task, num_seeds in NUM_SEEDS.items()
        if (of := summary(task, rows)) is not None and of["num_seeds"] < num_seeds
    ]
    return "\n".join([table(heads, cells), *(f"\n{line}" for line in missing)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="Python of a checkout of 0375cfd")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--measure", nargs=3, metavar=("TASK", "SEED", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.measure:
        task, seed, folder = arguments.measure
        print(json.dumps(measure(task, int(seed), Path(folder))))
        return 0
    from benchmarks.page import filled  # here: the code before has neither
    from benchmarks.resumable import Store

    store = Store(RESULTS, PROJECT)
    if not arguments.show:
        if arguments.before is None:
            parser.error("--before: name the Python of a checkout of 0375cfd, or ask for --show")
        compare(store, arguments.before)
    rows = [key_of(task, seed, "after") for task in TASKS for seed in seeds_of(task)]
    num_current = sum(store.is_current(row, SOURCES) for row in rows)
    print(
        f"{num_current} of {len(rows)} results were trained by this very code, the others by earlier", file=sys.stderr
    )
    found = {task: row for task in TASKS if (row := summary(task, store.values())) is not None}
    print(json.dumps(found, indent=1))
    PAGE.write_text(filled(PAGE.read_text(), "episodes", section(store.values())))
    return 0 if found and all(row["lower_bound"] >= WORST for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

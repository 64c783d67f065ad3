"""Small language policies learn tasks of LoomRL Gym, on one thread.

    python benchmarks/language.py                     # all of it, three seeds: benchmarks/results/language.json
    python benchmarks/language.py --task addition     # two-digit sums, by GRPO and by PPO
    python benchmarks/language.py --task mixed        # three domains at once, for one policy
    python benchmarks/language.py --task transfer     # one of the three, and what becomes of the others
    python benchmarks/language.py --task draw         # docs/images/bench_language.png from the results

Every training begins with a warm start whose end is measured. Held-out tasks are never drawn in training, and nothing
is decided by them. Seconds are of the process' own processor time, exams not counted. Ends with exit code 1 where a
goal is missed: on every seed 95 % of 1,000 held-out sums within 180 seconds, from a warm start that gets 30 %; more
right answers than the warm start in each of the three domains, by more than chance explains (p < 0.01, `gain_p_value`).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.stream import TaskStream, held_out_tasks
from loomrl.gym.tasks import Task
from loomrl.language.learning.evaluation import accuracy
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LanguageLearner, LearnerConfig
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig
from loomrl.language.learning.sources import TaskSource
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.learning.warm_start import WarmStartConfig, warm_start
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.policies.tokens import ByteTokenizer, CharacterTokenizer, Tokenizer
from loomrl.system.files import read_json, write_json
from loomrl.system.threads import one_thread, processor_family

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "language.json"
PICTURE = PROJECT / "docs" / "images" / "bench_language.png"
HELD_OUT_SHARE, HELD_OUT_SEED = 0.2, 10_000_000
GOAL, GOAL_SECONDS, GOAL_WARM, GOAL_P_VALUE = 0.95, 180.0, 0.3, 0.01
Row = dict[str, Any]


@dataclass(frozen=True)
class Lessons:
    """What is learnt and how: kinds of tasks by domain, the curriculum's levels, and the exam's: (level, number)."""

    kinds: Mapping[str, list[str]]
    levels: tuple[int, int]
    first_levels: Mapping[str, int]
    exam: Mapping[str, tuple[int, int]]
    tokenizer: Tokenizer
    warm_start: WarmStartConfig
    sampling: SamplingConfig
    num_prompts: int
    num_samples: int
    learning_rate: float
    num_updates: int
    exam_interval: int  # updates between two exams

    def tasks(self, seed: int, domains: list[str]) -> TaskStream:
        """Tasks to learn from."""
        first, last = self.levels
        first_levels = {domain: self.first_levels[domain] for domain in domains}
        config = CurriculumConfig(first_level=first, last_level=last, first_levels=first_levels)
        curriculum = Curriculum(config, domains)
        kinds = {domain: self.kinds[domain] for domain in domains}
        return TaskStream(curriculum, seed, kinds, HELD_OUT_SHARE)

    def held_out(self) -> list[Task]:
        """Tasks of the exam."""
        return [
            task
            for domain, (level, count) in self.exam.items()
            for task in held_out_tasks(domain, level, count, HELD_OUT_SEED, self.kinds[domain], HELD_OUT_SHARE)
        ]


ADDITION = Lessons(
    kinds={"math": ["addition"]},
    levels=(1, 1),
    first_levels={"math": 1},
    exam={"math": (1, 1_000)},
    tokenizer=CharacterTokenizer("0123456789+="),
    warm_start=WarmStartConfig(target_accuracy=0.35, num_check_tasks=400),
    sampling=SamplingConfig(temperature=0.7, max_tokens=4),
    num_prompts=64,
    num_samples=8,
    learning_rate=1e-3,
    num_updates=400,
    exam_interval=20,
)
MIXED = Lessons(
    kinds={"math": ["addition"], "language": ["translation"], "game": ["row_puzzle"]},
    levels=(1, 5),
    first_levels={"math": 1, "language": 2, "game": 1},
    # 192: all there are
    exam={"math": (1, 200), "language": (2, 192), "game": (1, 200)},
    tokenizer=ByteTokenizer(),
    warm_start=WarmStartConfig(target_accuracy=0.3, num_check_tasks=300),
    sampling=SamplingConfig(temperature=0.7, max_tokens=56),
    num_prompts=96,
    num_samples=8,
    learning_rate=3e-4,
    num_updates=100,
    exam_interval=25,
)


class Clock:
    """Processor seconds of the blocks it ran in."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    @contextmanager
    def running(self) -> Any:
        """Count this block."""
        started = time.process_time()
        yield
        self.seconds += time.process_time() - started


def begin(lessons: Lessons, algorithm: str, seed: int, folder: Path) -> tuple[LanguagePolicy, Row]:
    """A policy after its warm start in all domains, and how that went; made once for a folder."""
    kept = folder / f"{'-'.join(lessons.kinds)}-{algorithm}-{seed}"
    if not kept.exists():
        policy = LanguagePolicy.fresh(seed, lessons.tokenizer, max_tokens=160, value_head=algorithm == "ppo")
        clock = Clock()
        tasks = lessons.tasks(2 * seed, list(lessons.kinds))
        with clock.running():
            found = warm_start(policy, tasks, lessons.warm_start, lessons.sampling.max_tokens)
        policy.save(kept)
        write_json(kept / "warm_start.json", {"num_steps": found.num_steps, "cpu_seconds": round(clock.seconds, 1)})
    return LanguagePolicy.load(kept), read_json(kept / "warm_start.json")


def train(lessons: Lessons, algorithm: str, seed: int, learnt: list[str], folder: Path) -> Row:
    """From a warm start in all domains, updates from the domains to be learnt, with exams in between."""
    policy, begun = begin(lessons, algorithm, seed, folder)
    clock, curve, exam = Clock(begun["cpu_seconds"]), [], lessons.held_out()

    def examine(update: int) -> None:
        right = accuracy(policy, exam, lessons.sampling.max_tokens)
        curve.append({"update": update, "cpu_seconds": round(clock.seconds, 1), "accuracy": right})
        print(f"  update {update:4}  {clock.seconds:6.1f} s  {right}", flush=True)

    examine(0)
    source = TaskSource(
        lessons.tasks(2 * seed + 1, learnt),
        num_prompts=lessons.num_prompts,
        num_samples=lessons.num_samples,
        sampling=lessons.sampling,
        seed=seed,
    )
    updates = LanguageTrainer(learner_of(algorithm, policy, lessons), source).run(lessons.num_updates)
    for number in range(1, lessons.num_updates + 1):
        with clock.running():
            next(updates)
        if number % lessons.exam_interval == 0:
            examine(number)
    return {
        "algorithm": algorithm,
        "seed": seed,
        "learnt": learnt,
        "warm_start": {"num_steps": begun["num_steps"], **curve[0]},
        "curve": curve,
        "accuracy": curve[-1]["accuracy"],
        "cpu_seconds": curve[-1]["cpu_seconds"],
        "num_parameters": sum(parameter.numel() for parameter in policy.model.parameters()),
    }


def learner_of(algorithm: str, policy: LanguagePolicy, lessons: Lessons) -> LanguageLearner:
    """With a learning rate that falls to 0 at the end."""
    if algorithm == "ppo":
        return LanguagePPO(
            LanguagePPOConfig(learning_rate=lessons.learning_rate, total_updates=lessons.num_updates), policy
        )
    return GRPO(LearnerConfig(learning_rate=lessons.learning_rate, total_updates=lessons.num_updates), policy)


def rows_of(task: str, seed: int, folder: Path) -> list[Row]:
    """All trainings of a task with one seed."""
    if task == "addition":
        return [train(ADDITION, algorithm, seed, ["math"], folder) for algorithm in ("grpo", "ppo")]
    if task == "mixed":
        return [train(MIXED, "grpo", seed, list(MIXED.kinds), folder)]
    return [train(MIXED, "grpo", seed, [domain], folder) for domain in MIXED.kinds]


def reached(task: str, row: Row) -> bool:
    """Whether a row meets its goal; what transfers has none."""
    before, after = row["warm_start"]["accuracy"], row["accuracy"]
    if task == "addition":
        return bool(before["math"] >= GOAL_WARM and after["math"] >= GOAL and row["cpu_seconds"] <= GOAL_SECONDS)
    return task == "transfer" or all(
        gain_p_value(before[domain], after[domain], count) < GOAL_P_VALUE for domain, (_, count) in MIXED.exam.items()
    )


def gain_p_value(before: float, after: float, count: int) -> float:
    """How likely chance alone would bring so much more than `before`, shares of an exam of `count` tasks.

    Fisher's exact test of two proportions, one-sided. That both exams ask the same tasks makes it err towards 1.
    """
    from scipy.stats import fisher_exact

    right = [round(share * count) for share in (after, before)]
    table = [right, [count - number for number in right]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def record(task: str, rows: list[Row]) -> None:
    """Replace the rows of a task and a seed in the results."""
    kept = read_json(RESULTS)["rows"] if RESULTS.exists() else []
    done = {(task, row["seed"]) for row in rows}
    kept = [row for row in kept if (row["task"], row["seed"]) not in done]
    kept += [{"task": task, "reached": reached(task, row), **row} for row in rows]
    versions = {name: version(name) for name in ("torch", "numpy")}
    kept.sort(key=lambda row: (row["task"], row["algorithm"], row["seed"], row["learnt"]))
    write_json(RESULTS, {"versions": versions, "processor": processor_family(), "threads": 1, "rows": kept})


def draw() -> None:
    """The share of held-out tasks that are right, over processor seconds: sums, and the three domains."""
    from matplotlib import style
    from matplotlib.figure import Figure

    rows = read_json(RESULTS)["rows"]
    with style.context("default"):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
        sums, mixed = figure.subplots(1, 2, sharey=True)
        for row in rows:
            if row["task"] == "addition":
                plot(
                    sums, row, "math", row["algorithm"].upper(), {"grpo": "#1f77b4", "ppo": "#d95f02"}[row["algorithm"]]
                )
            elif row["task"] == "mixed":
                for domain, color in zip(MIXED.kinds, ("#1f77b4", "#2ca02c", "#9467bd"), strict=True):
                    plot(mixed, row, domain, domain, color)
        sums.axhline(GOAL, color="#999999", linewidth=0.8, linestyle="--")
        for axes, title in ((sums, "two-digit sums"), (mixed, "three domains, one policy")):
            axes.set_title(title, fontsize=10)
            axes.set(xlabel="processor seconds", ylim=(0, 1))
            axes.spines[["top", "right"]].set_visible(False)
            shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            axes.legend(shown.values(), shown.keys(), frameon=False, fontsize=8)
        sums.set_ylabel("right on held-out tasks")
        figure.savefig(PICTURE, format="png", metadata={"Software": None})


def plot(axes: Any, row: Row, domain: str, label: str, color: str) -> None:
    """One seed's curve."""
    seconds = [point["cpu_seconds"] for point in row["curve"]]
    axes.plot(seconds, [point["accuracy"][domain] for point in row["curve"]], color=color, label=label, alpha=0.8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--task", choices=["addition", "mixed", "transfer", "draw"], action="append", help="default: all"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--keep", type=Path, help="folder for policies after their warm start; default: a temporary one"
    )
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        for task in options.task or ["addition", "mixed", "transfer"]:
            for seed in options.seeds if task != "draw" else ():
                print(f"{task}, seed {seed}", flush=True)
                rows = rows_of(task, seed, options.keep or Path(temporary))
                record(task, rows)
                missed += sum(not reached(task, row) for row in rows)
    draw()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

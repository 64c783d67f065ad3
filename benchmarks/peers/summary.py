"""From runs to figures: one document for each case, `benchmarks/results/CASE.json`.

Interquartile means over seeds and their bootstrap intervals follow Agarwal et al. 2021 (arXiv 2108.13264), with
LoomRL's own statistics. Ratios are taken between runs of the same round, which follow each other on the machine.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loomrl.statistics.intervals import bootstrap_interval, interquartile_mean
from peers.cases import CASES, Case, Trainer
from peers.execute import PROJECT, raw_path

RESULTS = PROJECT / "benchmarks" / "results"
CONFIDENCE, REPLICATES = 0.95, 10_000
BASELINE = "sb3"
LATE = 3  # evaluations whose mean is shown beside the last one: single evaluations of a changing policy scatter
Document = dict[str, Any]


def result_path(case: Case) -> Path:
    """The document of a case."""
    return RESULTS / f"{case.name}.json"


def runs_of(case: Case, trainer: Trainer) -> list[Document]:
    """The runs there are, by seed."""
    paths = [raw_path(case, trainer, seed) for seed in case.seeds]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def summarize(case: Case) -> Document | None:
    """What came of a case; None before its first run."""
    found = {trainer.name: runs_of(case, trainer) for trainer in case.trainers}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        return None
    trainers = {name: _trainer(case, name, runs) for name, runs in found.items()}
    if case.kind != "learning":
        _add_ratios(case, trainers)
    return {
        "case": case.name,
        "title": case.title,
        "kind": case.kind,
        "environment": case.environment,
        "threads": case.threads,
        "goal": case.goal,
        "machine": _machine(found),
        "trainers": trainers,
    }


def _trainer(case: Case, name: str, runs: list[Document]) -> Document:
    first = runs[0]
    source = next(one.source for one in case.trainers if one.name == name)
    return {
        "source": source,
        "algorithm": first["run"]["algorithm"],
        "settings": first["run"]["settings"],
        "num_envs": first["run"]["num_envs"],
        "versions": first["versions"],
        "seeds": [run["run"]["seed"] for run in runs],
        "env_steps": [run["env_steps"] for run in runs],
        **_FIGURES[case.kind](case, runs),
    }


def _learning(_case: Case, runs: list[Document]) -> Document:
    """Greedy returns of the last policy, one mean per seed, and the curve up to it."""
    returns = [run["greedy"][-1][1] for run in runs]
    return {
        "returns": returns,
        "late_returns": [float(np.mean([row[1] for row in run["greedy"][-LATE:]])) for run in runs],
        "interquartile_mean": _interval(returns),
        "training_returns": [_late_training_return(run) for run in runs],
        "curve": [[row[:2] for row in run["greedy"]] for run in runs],
    }


def _late_training_return(run: Document) -> float | None:
    """Mean over the episodes, or updates, of the last tenth of training; exploring, not greedy."""
    late = [value for step, value in run["training"] if step > 0.9 * run["env_steps"]]
    return float(np.mean(late)) if late else None


def _solve(case: Case, runs: list[Document]) -> Document:
    """Seconds and steps to the first greedy mean that reached the limit."""
    reached = [_first_reached(run, case.stop_at_return or 0.0) for run in runs]
    seconds = [one[2] for one in reached if one]
    return {
        "num_solved": len(seconds),
        "num_runs": len(runs),
        "steps_to_solve": [one[0] if one else None for one in reached],
        "values": [one[2] if one else None for one in reached],
        "unit": "s",
        **_spread(seconds),
    }


def _first_reached(run: Document, limit: float) -> list[float] | None:
    return next((row for row in run["greedy"] if row[1] >= limit), None)


def _speed(case: Case, runs: list[Document]) -> Document:
    """Environment steps per second, learning included, after the warm-up."""
    values = [_rate(run["marks"], case.warm_up_env_steps) for run in runs]
    return {"values": values, "unit": "steps/s", **_spread(values)}


def _rate(marks: list[list[float]], warm_up: int) -> float:
    """Steps per second from the first mark at or after the warm-up to the last one."""
    first = next(mark for mark in marks if mark[0] >= warm_up)
    last = marks[-1]
    return (last[0] - first[0]) / (last[1] - first[1])


def _start(_case: Case, runs: list[Document]) -> Document:
    """Seconds from the start of the process to the end of the first update."""
    values = [run["first_update_seconds"] for run in runs]
    return {"values": values, "unit": "s", **_spread(values)}


def _overhead(_case: Case, runs: list[Document]) -> Document:
    """Per cent that the pipeline adds to the seconds of collecting, updating and validating: all else that the training
    stage's process takes once its loop is made, and the whole of the environment stage's before it."""
    start = [run["loop_seconds"]["start"] for run in runs]
    loop = [sum(run["loop_seconds"].values()) - run["loop_seconds"]["start"] for run in runs]
    added = [run["process_seconds"] - sum(run["loop_seconds"].values()) for run in runs]
    snapshots = [run["snapshot_seconds"] for run in runs]
    values = [100.0 * (one + two) / seconds for one, two, seconds in zip(added, snapshots, loop, strict=True)]
    return {
        "values": values,
        "start_seconds": _spread(start),
        "loop_seconds": _spread(loop),
        "added_seconds": _spread(added),
        "snapshot_seconds": _spread(snapshots),
        "unit": "%",
        **_spread(values),
    }


_FIGURES = {"learning": _learning, "solve": _solve, "speed": _speed, "start": _start, "overhead": _overhead}


def _spread(values: list[float]) -> Document:
    if not values:
        return {"median": None, "min": None, "max": None}
    return {"median": median(values), "min": min(values), "max": max(values)}


def _interval(values: list[float]) -> Document:
    interval = bootstrap_interval(values, interquartile_mean, CONFIDENCE, REPLICATES, np.random.default_rng(0))
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "confidence": CONFIDENCE}


def _add_ratios(case: Case, trainers: dict[str, Document]) -> None:
    """How many times the baseline, round by round; for seconds, how many times faster."""
    baseline = trainers.get(BASELINE)
    if baseline is None:
        return
    of_baseline = dict(zip(baseline["seeds"], baseline["values"], strict=True))
    for figures in trainers.values():
        own = dict(zip(figures["seeds"], figures["values"], strict=True))
        shared = [seed for seed in own if own[seed] and of_baseline.get(seed)]
        pairs = [(own[seed], of_baseline[seed]) for seed in shared]
        ratios = [one / base if case.kind == "speed" else base / one for one, base in pairs]
        figures["ratio"] = _spread(ratios)


def _machine(found: dict[str, list[Document]]) -> Document:
    """The machine, with the load that was there: speed under load is worth only its ratios. Returns may come from
    several machines: their processors are all named."""
    every = [run["machine"] for runs in found.values() for run in runs]
    loads = [one["load"] for one in every]
    same = {key: every[0][key] for key in every[0] if key != "load"}
    same["processor"] = " and ".join(sorted({one["processor"] for one in every}))
    return {**same, "load": _spread(loads)}


def all_summaries() -> dict[str, Document]:
    """By name, those that have runs."""
    documents = {case.name: summarize(case) for case in CASES}
    return {name: document for name, document in documents.items() if document is not None}

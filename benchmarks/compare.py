"""LoomRL beside its peers: the same tasks, in turns, on the same machine.

    make peers                              # once: the peers' own environment, .venv-peers
    python benchmarks/compare.py list       # the cases
    python benchmarks/compare.py learn      # returns; resumes: one file per run under benchmarks/results/raw
    python benchmarks/compare.py speed      # everything that is timed; wants a quiet machine, starts anew each time
    python benchmarks/compare.py render     # benchmarks/results/CASE.json, pictures, the tables of docs/benchmarks.md
    python benchmarks/compare.py render --check    # are those in step with the runs?

`--case` and `--trainer` pick some of them, `--seeds` some seeds (of what is timed: rounds). Ends with exit code 1 when
a run failed, or `--check` found a difference.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loomrl.algorithms.registry import find_algorithms
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import settle_backend
from loomrl.environment.snapshots.snapshot import take_snapshot
from peers.cases import CASES, TIMED, Case, Trainer
from peers.execute import PROJECT, RunFailed, execute, raw_path, shortened, write
from peers.render import PAGE, as_json, draw, rendered
from peers.summary import all_summaries, result_path


class Snapshots:
    """LoomRL trains on snapshots of environments: each taken once, before anything is timed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, environment: str) -> Path:
        folder = self._folder / environment
        if not folder.exists():
            take_snapshot(EnvironmentConfig(id=environment), PROJECT, folder)
            settle_backend(folder, "auto")
        return folder


def learn(cases: list[Case], snapshots: Snapshots) -> int:
    """All runs that are missing, a seed of every trainer before the next seed; returns how many failed."""
    failures = 0
    for case, trainer, seed in runs(cases):
        if raw_path(case, trainer, seed).exists():
            continue
        failures += not attempt(case, trainer, seed, snapshots, pinned=False)
    return failures


def speed(cases: list[Case], snapshots: Snapshots) -> int:
    """All runs anew, in rounds A B A B, each on as many cores as its case has threads; returns how many failed."""
    failures = 0
    for case in cases:
        for trainer in case.trainers:  # compiled code is cached, files are read once: neither is measured
            warm_up(case, trainer, snapshots)
        for path in (raw_path(case, trainer, seed) for _, trainer, seed in runs([case])):
            path.unlink(missing_ok=True)
        for _, trainer, seed in runs([case]):
            failures += not attempt(case, trainer, seed, snapshots, pinned=True)
    return failures


def runs(cases: list[Case]) -> Iterator[tuple[Case, Trainer, int]]:
    """In the order in which they take turns."""
    for case in cases:
        for seed in case.seeds:
            for trainer in case.trainers:
                yield case, trainer, seed


def warm_up(case: Case, trainer: Trainer, snapshots: Snapshots) -> None:
    """A short run whose figures nobody keeps."""
    short = shortened(case, min(case.total_env_steps, 1_000))
    try:
        execute(short, replace(trainer, total_env_steps=None), 1, snapshots[case.environment], pinned=True)
    except RunFailed as failure:
        print(f"warm-up: {failure}", file=sys.stderr, flush=True)


def attempt(case: Case, trainer: Trainer, seed: int, snapshots: Snapshots, pinned: bool) -> bool:
    """Run and keep what came of it; whether it worked."""
    path, started = raw_path(case, trainer, seed), time.monotonic()
    try:
        write(path, execute(case, trainer, seed, snapshots[case.environment], pinned))
    except RunFailed as failure:
        print(failure, file=sys.stderr, flush=True)
        return False
    print(f"{path.relative_to(PROJECT)}  {time.monotonic() - started:.0f} s", flush=True)
    return True


def render(check: bool) -> int:
    """Write everything that is made from the runs, or count what differs from it."""
    documents = all_summaries()
    files = {result_path(case): as_json(documents[case.name]) for case in CASES if case.name in documents}
    files[PAGE] = rendered(PAGE.read_text(), documents)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(PROJECT)} is not in step with the runs: python benchmarks/compare.py render")
        return len(stale)
    for path, text in files.items():
        path.write_text(text)
    for document in documents.values():
        if len(document["trainers"]) > 1:  # one bar is no comparison
            draw(document)
    return 0


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases of the command that were asked for, with the trainers and seeds that were asked for.

    LoomRL's part of a case waits until this installation has the algorithm.
    """
    timed, algorithms = options.command == "speed", find_algorithms()
    cases = []
    for case in CASES:
        if (case.kind in TIMED) != timed or (options.case and case.name not in options.case):
            continue
        trainers = tuple(
            one
            for one in case.trainers
            if (not options.trainer or one.name in options.trainer)
            and (one.package in ("sb3", "sbx") or one.algorithm in algorithms)
        )
        cases.append(replace(case, trainers=trainers, seeds=tuple(options.seeds or case.seeds)))
    return cases


def list_cases() -> None:
    for case in CASES:
        print(f"{case.name:28} {case.kind:9} {', '.join(one.name for one in case.trainers)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "learn", "speed", "render"])
    parser.add_argument("--case", choices=[case.name for case in CASES], action="append")
    parser.add_argument("--trainer", action="append")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--check", action="store_true", help="render: change nothing")
    options = parser.parse_args()
    if options.command == "list":
        list_cases()
        return 0
    if options.command == "render":
        return 1 if render(options.check) else 0
    with tempfile.TemporaryDirectory() as temporary:
        command = {"learn": learn, "speed": speed}[options.command]
        return 1 if command(chosen(options), Snapshots(Path(temporary))) else 0


if __name__ == "__main__":
    sys.exit(main())

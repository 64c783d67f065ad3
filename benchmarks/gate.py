"""How good the gate is: seeded bad policies, rewards and environments, and good policies beside them.

    python benchmarks/gate.py [--processes 2]        # what is missing; writes results/gate.json and docs/gate.md
    python benchmarks/gate.py bad --only back_door   # some of the bad ones; writes nothing
    python benchmarks/gate.py render                 # the page again, from the results

The bad ones are the files of `benchmarks/seeded`. The good ones are CartPole policies of 100 training seeds whose mean
return over 1,000 fresh episodes is at least 475. CartPole's are examined with the config that ships, those of flawed
worlds with the limits and objectives of their task: no region, radius or other setting that knows of a flaw. Ends with
exit code 1 when fewer than 95 % of the bad ones were refuted, or more than 5 % of the good ones were blocked; of some,
when any was.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.resumable import Store  # noqa: E402
from loomrl.training.threads import one_thread  # noqa: E402
from seeded.workshop import GOOD_RETURN, Workshop, is_refused, seeded  # noqa: E402

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "gate.json"
PAGE = PROJECT / "docs" / "gate.md"
NUM_GOOD = 100
LEAST_REFUSED, MOST_BLOCKED = 0.95, 0.05
BEGIN, END = "<!-- table -->", "<!-- end -->"
SOURCES = (
    "src/loomrl/safety",
    "src/loomrl/training",
    "src/loomrl/algorithms",
    "benchmarks/seeded/workshop.py",
    "configs/cartpole.yaml",
)


def examine_bad(kind: str, name: str) -> dict[str, Any]:
    """What became of a seeded file."""
    (case,) = (one for one in seeded() if one.__name__.split(".")[1:] == [kind, name])
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcome = Workshop(Path(folder)).examine(case)
        return {
            "kind": kind,
            "name": name,
            "wrong": " ".join((case.__doc__ or "").split()),
            "refused": is_refused(outcome),
            "blocking": list(outcome.blocking),
            "refuted": list(outcome.refuted),
            "replayed": list(outcome.replayed),
            "finding": outcome.finding.replace(folder, "..."),
        }


def examine_good(seed: int) -> dict[str, Any]:
    """What became of the policy of a training seed."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        mean, outcome = Workshop(Path(folder)).good(seed)
        return {
            "seed": seed,
            "fresh_mean_return": mean,
            "is_good": mean >= GOOD_RETURN,
            "passed": not outcome.blocking,
            "blocking": list(outcome.blocking),
            "finding": outcome.finding.replace(folder, "..."),
        }


def jobs(command: str, only: list[str], count: int) -> dict[str, tuple[Any, ...]]:
    """What is to be examined, by the names of results: a function and its arguments."""
    found: dict[str, tuple[Any, ...]] = {}
    if command != "good":
        for case in seeded():
            _, kind, name = case.__name__.split(".")
            if not only or name in only:
                found[f"{kind}/{name}"] = (examine_bad, kind, name)
    if command != "bad":
        found |= {f"good/{seed}": (examine_good, seed) for seed in range(1, count + 1)}
    return found


def sources(name: str) -> tuple[str, ...]:
    """Files and folders that a result depends on."""
    return SOURCES if name.startswith("good/") else (*SOURCES, f"benchmarks/seeded/{name}.py")


def examined(todo: dict[str, tuple[Any, ...]], processes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results, as they come."""
    started = time.monotonic()
    with get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        for number, (name, row) in enumerate(pool.imap_unordered(_examined, todo.items()), 1):
            if "seed" in row:
                told = "passed" if row["passed"] else f"blocked: {row['finding']}"
            else:
                told = f"{'refused' if row['refused'] else 'MISSED'} by {', '.join(row['refuted'] or row['blocking'])}"
            print(f"{number} of {len(todo)}, {time.monotonic() - started:.0f} s: {name}: {told}", flush=True)
            yield name, row


def _examined(job: tuple[str, tuple[Any, ...]]) -> tuple[str, dict[str, Any]]:
    name, (examine, *arguments) = job
    return name, examine(*arguments)


def of_results(values: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of bad and of good ones, in the order of their files and seeds."""
    rows = [values[name] for name in jobs("all", [], NUM_GOOD) if name in values]
    return {"bad": [row for row in rows if "seed" not in row], "good": [row for row in rows if "seed" in row]}


def reached(document: dict[str, Any]) -> bool:
    """Whether both limits hold."""
    bad, good = document["bad"], [row for row in document["good"] if row["is_good"]]
    refused = sum(row["refused"] for row in bad) / len(bad)
    blocked = sum(not row["passed"] for row in good) / len(good)
    return bool(refused >= LEAST_REFUSED and blocked <= MOST_BLOCKED)


def rendered(page: str, document: dict[str, Any]) -> str:
    """The page with the table of what was found."""
    bad, good = document["bad"], [row for row in document["good"] if row["is_good"]]
    passed, refused = sum(row["passed"] for row in good), sum(row["refused"] for row in bad)
    replayed = sum(bool(row["replayed"]) for row in bad)
    lines = [
        f"{refused} of {len(bad)} seeded files were refused, {replayed} of them by a failure that was played again; "
        f"{passed} of {len(good)} good policies passed.",
        "",
        "| what is wrong | refused by | played again |",
        "|---|---|---|",
        *(f"| {row['wrong']} | {_refused_by(row)} | {', '.join(map(_code, row['replayed'])) or '-'} |" for row in bad),
    ]
    head, _, rest = page.partition(BEGIN)
    return "\n".join([head + BEGIN, "", *lines, "", END + rest.partition(END)[2]])


def _refused_by(row: dict[str, Any]) -> str:
    if row["refused"]:
        return ", ".join(map(_code, row["refuted"]))
    return f"**not refused**{'; undecided: ' if row['blocking'] else ''}{', '.join(map(_code, row['blocking']))}"


def _code(name: str) -> str:
    return f"`{name}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["all", "bad", "good", "render"], default="all")
    parser.add_argument("--only", nargs="+", default=[], help="names of seeded files")
    parser.add_argument("--count", type=int, default=NUM_GOOD, help="of good policies")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    kept, wanted = Store(RESULTS, PROJECT), jobs(options.command, options.only, options.count)
    if options.command in ("bad", "good") and (options.only or options.count != NUM_GOOD):
        rows = [row for _, row in examined(wanted, options.processes)]
        return 0 if all(row.get("refused", row.get("passed")) for row in rows) else 1
    if options.command != "render":
        todo = {name: job for name, job in wanted.items() if not kept.is_current(name, sources(name))}
        for name, row in examined(todo, options.processes):
            kept.put(name, sources(name), row)
        kept.keep(jobs("all", [], NUM_GOOD))
    document = of_results(kept.values())
    PAGE.write_text(rendered(PAGE.read_text(), document))
    return 0 if reached(document) else 1


if __name__ == "__main__":
    sys.exit(main())

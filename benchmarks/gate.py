"""How good the gate is: seeded bad policies, rewards and environments, and good policies beside them.

    python benchmarks/gate.py                          # all; writes benchmarks/results/gate.json, docs/gate.md
    python benchmarks/gate.py bad --only back_door     # some of the bad ones; writes nothing
    python benchmarks/gate.py render                   # the page again, from the results

The bad ones are the files of `benchmarks/seeded`. The good ones are CartPole policies of 100 training seeds, examined
with what CartPole's bad ones are examined with. Ends with exit code 1 when fewer than 95 % of the bad ones were refuted
by the check that is meant for them, or more than 5 % of the good ones were blocked; of some, when any was.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loomrl.files import read_json, write_json
from loomrl.training.threads import one_thread
from seeded.workshop import Workshop, is_blocked_by_its_check, seeded

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "gate.json"
PAGE = PROJECT / "docs" / "gate.md"
NUM_GOOD = 100
LEAST_BLOCKED, MOST_BLOCKED = 0.95, 0.05
BEGIN, END = "<!-- table -->", "<!-- end -->"


def examine_bad(workshop: Workshop, only: list[str]) -> list[dict[str, Any]]:
    """A row for each seeded file."""
    rows = []
    for case in seeded():
        _, kind, name = case.__name__.split(".")
        if only and name not in only:
            continue
        started, outcome = time.monotonic(), workshop.examine(case)
        caught = is_blocked_by_its_check(case, outcome)
        rows.append(
            {
                "kind": kind,
                "name": name,
                "wrong": " ".join((case.__doc__ or "").split()),
                "meant": case.BLOCKED_BY,
                "caught": caught,
                "refuted": list(outcome.refuted),
                "finding": outcome.finding.replace(str(workshop.root), "..."),
            }
        )
        seconds = time.monotonic() - started
        print(f"{'caught' if caught else 'MISSED':7} {kind}/{name}: {case.BLOCKED_BY}  {seconds:.1f} s", flush=True)
        if not caught:
            print(f"        {outcome.blocking}: {outcome.finding}", flush=True)
    return rows


def examine_good(workshop: Workshop, count: int) -> list[dict[str, Any]]:
    """A row for each training seed."""
    rows = []
    for seed in range(1, count + 1):
        outcome = workshop.good(seed)
        rows.append({"seed": seed, "passed": not outcome.blocking, "blocking": list(outcome.blocking)})
        print(f"seed {seed:3}  {'passed' if not outcome.blocking else f'blocked: {outcome.finding}'}", flush=True)
    return rows


def reached(document: dict[str, Any]) -> bool:
    """Whether both limits hold."""
    bad, good = document["bad"], document["good"]
    caught = sum(row["caught"] for row in bad) / len(bad)
    blocked = sum(not row["passed"] for row in good) / len(good)
    return bool(caught >= LEAST_BLOCKED and blocked <= MOST_BLOCKED)


def rendered(page: str, document: dict[str, Any]) -> str:
    """The page with the table of what was found."""
    bad, good = document["bad"], document["good"]
    passed = sum(row["passed"] for row in good)
    caught = sum(row["caught"] for row in bad)
    lines = [
        f"{caught} of {len(bad)} seeded files were blocked by the check that is meant for them; "
        f"{passed} of {len(good)} good policies passed.",
        "",
        "| what is wrong | meant to notice | noticed |",
        "|---|---|---|",
        *(f"| {row['wrong']} | `{row['meant']}` | {'yes' if row['caught'] else '**no**'} |" for row in bad),
    ]
    head, _, rest = page.partition(BEGIN)
    return "\n".join([head + BEGIN, "", *lines, "", END + rest.partition(END)[2]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["all", "bad", "good", "render"], default="all")
    parser.add_argument("--only", nargs="+", default=[], help="names of seeded files")
    parser.add_argument("--count", type=int, default=NUM_GOOD, help="of good policies")
    options = parser.parse_args()
    if options.command == "render":
        PAGE.write_text(rendered(PAGE.read_text(), read_json(RESULTS)))
        return 0
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        workshop = Workshop(Path(temporary))
        document = {
            "bad": examine_bad(workshop, options.only) if options.command != "good" else [],
            "good": examine_good(workshop, options.count) if options.command != "bad" else [],
        }
    if options.command != "all" or options.only or options.count != NUM_GOOD:
        missed = [row for row in document["bad"] if not row["caught"]]
        return 1 if missed or any(not row["passed"] for row in document["good"]) else 0
    write_json(RESULTS, document)
    PAGE.write_text(rendered(PAGE.read_text(), document))
    return 0 if reached(document) else 1


if __name__ == "__main__":
    sys.exit(main())

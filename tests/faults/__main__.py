"""`make faults`: a person intervenes under each fault and pair, at the start and while running; one worker, and two.

What each case measured is kept in `benchmarks/results/faults.json`, with the digests of the files it depends on: a run
that is stopped goes on where it was. `python -m tests.faults "disk" "clock ahead"` runs only cases of these faults.
"""

import sys
import tempfile
from itertools import combinations
from pathlib import Path

from benchmarks.resumable import Store
from tests.faults import orders

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
SOURCES = (
    "src/loomrl/serving",
    "src/loomrl/storage/audit",
    "src/loomrl/storage/loomdb",
    "src/loomrl/storage/registry",
    "src/loomrl/system/background.py",
    "tests/faults/orders.py",
)
MOST_SECONDS = 1.0  # after which an order must be in force

Case = tuple[tuple[str, ...], str, int]  # faults, when, workers


def cases() -> list[Case]:
    """Each fault alone, and in pairs that can be."""
    pairs = [pair for pair in combinations(orders.FAULTS, 2) if set(pair) != {"clock ahead", "clock behind"}]
    faults = [*((fault,) for fault in orders.FAULTS), *pairs]
    return [(found, moment, workers) for found in faults for moment in orders.MOMENTS for workers in (1, 2)]


def key_of(case: Case) -> str:
    """How a case's result is named."""
    faults, moment, workers = case
    return f"{' and '.join(faults)}, {moment}, {workers} worker{'s' * (workers > 1)}"


def main(names: list[str]) -> int:
    """Run the cases that only need these faults, or all; those whose results are kept are not run again.

    Returns 1 where an order was not in force in time: then nothing is kept of that case, and the next run tries again.
    """
    store = Store(RESULTS, ROOT)
    wanted = [case for case in cases() if not names or set(case[0]) <= set(names)]
    due = [case for case in wanted if not store.is_current(key_of(case), SOURCES)]
    if not due:
        print(f"nothing is due: all {len(wanted)} results are current")
        return 0
    late = 0
    with tempfile.TemporaryDirectory(prefix="loomrl-faults-") as folder, orders.services(Path(folder)) as services:
        for faults, moment, workers in due:
            seconds = orders.run(services, faults, [moment], workers)
            slowest = max(second for found in seconds.values() for second in found.values())
            print(f"{key_of((faults, moment, workers))}: {slowest:.3f} s", flush=True)
            if slowest < MOST_SECONDS:
                store.put(key_of((faults, moment, workers)), SOURCES, seconds)
            else:
                late += 1
                print(f"too late: an order is to be in force within {MOST_SECONDS:g} s: {seconds}", flush=True)
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Certified properties on public benchmarks, beside Marabou: `python benchmarks/certified.py FOLDER [--set NAME]`.

FOLDER holds the benchmarks of VNN-COMP 2022 (github.com/ChristopherBrix/vnncomp2022_benchmarks, its folder
`benchmarks`, files unpacked); none of it is part of this repository. Each instance is decided by LoomRL, then by
maraboupy, in one process on the same files, reading included, imports and the first compilation not. `random` needs no
FOLDER: 2,000 networks and properties made up here, on which both must agree.

Results go to `benchmarks/results/certified.json`. Ends with 1 when the two contradict each other, or what must
be shown is not: each instance of `rl_benchmarks` decided within 10 s, and five times as fast as by Marabou in the
median; nine of ten of `acasxu`.
"""

import argparse
import csv
import os
import statistics
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.safety.certified import marabou
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.search import PropertySearch
from loomrl.safety.certified.verify import verify
from loomrl.system.files import read_json, write_json
from peers.execute import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support import networks

RESULTS = Path(__file__).parent / "results" / "certified.json"
SETS = {"rl_benchmarks": True, "acasxu": False}  # whether Marabou is asked beside: on ACAS Xu it takes hours
DECIDED = ("sat", "unsat")


def instances(folder: Path, name: str) -> list[tuple[Path, Path]]:
    """Network and property of each instance of a set."""
    with (folder / name / "instances.csv").open() as rows:
        return [(folder / name / network, folder / name / prop) for network, prop, _ in csv.reader(rows)]


def ask_loomrl(graph: Path, prop: Path, timeout: float) -> tuple[str, float]:
    """Verdict and seconds."""
    begun = time.perf_counter()
    answer = verify(graph, prop, timeout)
    return answer.verdict.value, time.perf_counter() - begun


def ask_marabou(graph: Path, prop: Path, timeout: float) -> tuple[str, float]:
    """Verdict and seconds, with its own reading of both files."""
    from maraboupy import MarabouCore
    from maraboupy.MarabouNetworkONNX import MarabouNetworkONNX

    options = MarabouCore.Options()
    options._verbosity, options._timeoutInSeconds = 0, int(timeout)
    begun = time.perf_counter()
    verdict, _, _ = MarabouNetworkONNX(str(graph)).solve(options=options, propertyFilename=str(prop), verbose=False)
    return verdict.lower(), time.perf_counter() - begun


def run_set(folder: Path, name: str, timeout: float) -> dict[str, Any]:
    """All instances of a set."""
    files = instances(folder, name)
    ask_loomrl(*files[0], timeout)  # compiles, where nothing is kept yet
    ours, theirs = [], []
    for number, (graph, prop) in enumerate(files, start=1):
        ours.append(ask_loomrl(graph, prop, timeout))
        if SETS[name]:
            theirs.append(ask_marabou(graph, prop, timeout))
        print(f"{number} of {len(files)}: {prop.name}: {ours[-1]} {theirs[-1] if theirs else ''}", flush=True)
    found: dict[str, Any] = {"instances": len(files), "timeout_seconds": timeout, "loomrl": summary(ours)}
    if theirs:
        contradictions = sum(
            one[0] != other[0] for one, other in zip(ours, theirs, strict=True) if {one[0], other[0]} <= {*DECIDED}
        )
        ratios = [other[1] / one[1] for one, other in zip(ours, theirs, strict=True)]
        found |= {"marabou": summary(theirs), "contradictions": contradictions}
        found["times_faster"] = {"median": round(statistics.median(ratios), 2), "min": round(min(ratios), 2)}
    return found


def summary(answers: list[tuple[str, float]]) -> dict[str, Any]:
    """Verdicts, and seconds over all instances."""
    seconds = [one[1] for one in answers]
    verdicts = Counter(one[0] for one in answers)
    return {
        "verdicts": dict(sorted(verdicts.items())),
        "decided": sum(verdicts[verdict] for verdict in DECIDED),
        "seconds": {
            "median": round(statistics.median(seconds), 4),
            "max": round(max(seconds), 2),
            "sum": round(sum(seconds), 1),
        },
    }


def run_random(count: int) -> dict[str, Any]:
    """Networks of ReLUs, boxes and conjunctions of limits near the edge of what the outputs reach."""
    rng, pairs = np.random.default_rng(0), Counter[tuple[str, str]]()
    for number in range(count):
        network, prop = networks.question(rng)
        cases = prop.cases
        search = PropertySearch(pack(network), cases, lambda inputs, _: inputs.astype(np.float32))
        verdict = search.run(time.monotonic() + 60).verdict.value
        pairs[verdict, marabou.ask(network, cases, 60)["verdict"]] += 1
        if number % 100 == 99:
            print(f"{number + 1} of {count}: {dict(pairs)}", flush=True)
    contradictions = sum(times for (one, other), times in pairs.items() if one != other)
    return {"networks": count, "contradictions": contradictions, "agreed": {one: n for (one, _), n in pairs.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--set", choices=[*SETS, "random"], action="append", dest="sets")
    parser.add_argument("--timeout", type=float, default=116.0, help="seconds for each instance")
    parser.add_argument("--networks", type=int, default=2_000, help="of `random`")
    options = parser.parse_args()
    results = read_json(RESULTS) if RESULTS.exists() else {}
    for name in options.sets or [*SETS, "random"]:
        found = run_random(options.networks) if name == "random" else run_set(options.folder, name, options.timeout)
        packages = {package: version(package) for package in ("maraboupy", "numba", "onnxruntime", "numpy")}
        results[name] = found | {"machine": machine(), "versions": packages}
        write_json(RESULTS, results)
    return 0 if all(reached(name, one) for name, one in results.items()) else 1


def reached(name: str, found: dict[str, Any]) -> bool:
    """Whether a set's results are what must be shown."""
    if found.get("contradictions"):
        return False
    if name == "random":
        return bool(found["networks"] >= 2_000)
    decided, ours = found["loomrl"]["decided"] / found["instances"], found["loomrl"]["seconds"]
    if name == "acasxu":
        return bool(decided >= 0.9 and found["timeout_seconds"] <= 116.0)
    return bool(decided == 1.0 and ours["max"] <= 10.0 and found["times_faster"]["median"] >= 5.0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

"""What a decision costs, beside MLflow, MLServer and a bare handler: `python benchmarks/serving.py`.

Every server serves the same 64x64 graph, one after the other, in rounds; ratios are taken within a round and their
median counts. LoomRL's has everything on: token, rate limit, shield, shadow, and every decision on record before it is
answered. Writes `benchmarks/results/serving.json`, and ends with 1 when a target of the issue is missed.

    make peers && apt-get install wrk     # MLServer, in an environment of its own; what asks
    python benchmarks/serving.py --rounds 5 --seconds 5
    python benchmarks/serving.py --before ../earlier/src    # beside an earlier commit's server, and nothing else

With `--before` the results are in `benchmarks/results/serving_before.json`: how much more of the processor an answer
takes now, question by question; it ends with 1 where that is more than 5 %.
"""

import argparse
import os
import platform
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.system.files import write_json
from served import servers
from served.load import Served, measure, request
from served.policies import NAME, OBSERVATIONS, write_policy

RESULTS = Path(__file__).parent / "results" / "serving.json"
BEFORE = Path(__file__).parent / "results" / "serving_before.json"
CONNECTIONS, BATCH = 32, 64
MOST_COST = 1.05  # of before
# Each target: what is asked of ours, of whom, which figure, and how many times ours must be better (or at most cost).
TARGETS = {
    "15 times less CPU per decision than MLflow": ("mlflow", "decide", "cpu_us_per_request", 15.0),
    "10 times MLflow's decisions per second at 64 per request": ("mlflow", "batch", "decisions_per_second", 10.0),
    "at most 1.6 times the CPU of the bare handler": ("bare", "decide", "cpu_us_per_request", 1 / 1.6),
    "8 times less CPU than MLServer on V2 inference": ("mlserver", "infer", "cpu_us_per_request", 8.0),
}
_ASKED_OF_PEERS = {"decide": "infer"}  # they know no agents


def decide_requests() -> list[bytes]:
    """One observation each, of many agents."""
    asks = ({"agent_id": f"a{number % 32}", "observation": row} for number, row in enumerate(OBSERVATIONS))
    return [request("/decide", ask, servers.TOKEN) for ask in asks]


def infer_requests(rows: int, token: str = "") -> list[bytes]:
    """Open Inference Protocol V2, in JSON."""
    path = f"/v2/models/{NAME}/infer"
    return [
        request(path, {"inputs": [_tensor(OBSERVATIONS[start : start + rows])], "outputs": [{"name": "action"}]}, token)
        for start in range(0, len(OBSERVATIONS) - rows + 1, rows)
    ]


def binary_requests(rows: int, token: str = "") -> list[bytes]:
    """The same with tensors as bytes, as `tritonclient[http]` sends them."""
    path = f"/v2/models/{NAME}/infer"
    action = {"name": "action", "parameters": {"binary_data": True}}
    found = []
    for start in range(0, len(OBSERVATIONS) - rows + 1, rows):
        some = OBSERVATIONS[start : start + rows]
        told = {"name": "observation", "shape": list(some.shape), "datatype": "FP32"}
        told["parameters"] = {"binary_data_size": some.nbytes}
        found.append(request(path, {"inputs": [told], "outputs": [action]}, token, some.tobytes()))
    return found


def mlflow_requests(rows: int) -> list[bytes]:
    """MLflow's own protocol, on the same observations."""
    return [
        request("/invocations", {"inputs": {"observation": OBSERVATIONS[start : start + rows]}})
        for start in range(0, len(OBSERVATIONS) - rows + 1, rows)
    ]


def _tensor(rows: Any) -> dict[str, Any]:
    return {"name": "observation", "shape": list(rows.shape), "datatype": "FP32", "data": rows.reshape(-1)}


def one_round(work: Path, seconds: int) -> dict[str, dict[str, Any]]:
    """Every server once."""
    champion, challenger = write_policy(work / "champion"), write_policy(work / "challenger", seed=1)
    ours = our_questions()
    v2 = {"infer": (infer_requests(1), 1), "batch": (infer_requests(BATCH), BATCH)}
    theirs = {"infer": (mlflow_requests(1), 1), "batch": (mlflow_requests(BATCH), BATCH)}
    return {
        "bare": _asked(servers.bare(champion), v2, seconds),
        "loomrl": _asked(servers.loomrl(champion, work / "home", challenger), ours, seconds),
        "loomrl_alone": _asked(servers.loomrl(champion, work / "alone"), ours, seconds),
        "mlflow": _asked(servers.mlflow_server(champion, work), theirs, seconds),
        "mlserver": _asked(servers.mlserver(champion, work), v2, seconds),
    }


def our_questions() -> dict[str, tuple[list[bytes], int]]:
    """What LoomRL's servers are asked, and how many decisions each request is for."""
    token = servers.TOKEN
    return {
        "decide": (decide_requests(), 1),
        "infer": (infer_requests(1, token), 1),
        "batch": (infer_requests(BATCH, token), BATCH),
        "binary": (binary_requests(BATCH, token), BATCH),
    }


def one_round_beside(work: Path, seconds: int, sources: Path) -> dict[str, dict[str, Any]]:
    """Our server as it is, and from the sources of an earlier commit, each twice and in turn."""
    champion, challenger = write_policy(work / "champion"), write_policy(work / "challenger", seed=1)
    found: dict[str, dict[str, Any]] = {}
    for name in ("before", "now", "now_again", "before_again"):
        environment = {"PYTHONPATH": str(sources)} if name.startswith("before") else {}
        server = servers.loomrl(champion, work / name, challenger, environment)
        found[name] = _asked(server, our_questions(), seconds)
    return found


def cost_of_before(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The processor's time of an answer in parts of what it was: in each round, and the median."""
    found = {}
    for question in our_questions():
        times = [
            [one[name][question]["cpu_us_per_request"] + one[f"{name}_again"][question]["cpu_us_per_request"]
             for name in ("now", "before")]
            for one in rounds
        ]  # fmt: skip
        costs = [now / before for now, before in times]
        median = float(np.median(costs))
        found[question] = {"costs": costs, "median": median, "most": MOST_COST, "reached": median <= MOST_COST}
    return found


def _asked(
    server: AbstractContextManager[Served], questions: dict[str, tuple[list[bytes], int]], seconds: int
) -> dict[str, Any]:
    with server as served:
        print(served.name, end=" ", flush=True)
        return {
            name: measure(served, requests, CONNECTIONS, seconds, rows) for name, (requests, rows) in questions.items()
        }


def ratios(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """How many times better ours is in each round, and the median; a cost at most means the other way round."""
    found = {}
    for target, (peer, question, figure, least) in TARGETS.items():
        pairs = [
            (one["loomrl"][question][figure], one[peer][_ASKED_OF_PEERS.get(question, question)][figure])
            for one in rounds
        ]
        better = [ours / theirs if figure == "decisions_per_second" else theirs / ours for ours, theirs in pairs]
        median = float(np.median(better))
        found[target] = {"ratios": better, "median": median, "least": least, "reached": median >= least}
    return found


def main() -> None:
    """Measure in rounds, write, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=4, help="per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--before", type=Path, metavar="SRC", help="`src` of an earlier commit")
    options = parser.parse_args()
    sources = None if options.before is None else options.before.resolve(strict=True)
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as work:
            if sources is None:
                rounds.append(one_round(Path(work), options.seconds))
            else:
                rounds.append(one_round_beside(Path(work), options.seconds, sources))
        print()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    judged = ratios(rounds) if sources is None else cost_of_before(rounds)
    output = options.output or (RESULTS if sources is None else BEFORE)
    write_json(output, {"machine": machine, "targets": judged, "rounds": rounds})
    for target, row in judged.items():
        bound = f"least {row['least']:.3g}" if "least" in row else f"of before, most {row['most']:.3g}"
        print(f"{'reached' if row['reached'] else 'MISSED ':7} {target}: {row['median']:.3f} ({bound})")
    if not all(row["reached"] for row in judged.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

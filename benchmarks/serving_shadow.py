"""What a faulty challenger costs the champion's agents: `python benchmarks/serving_shadow.py`.

For each fault, pairs of servers one after the other, one of them with a challenger that has it: p99 latency at the
client, as a ratio; the same for pairs without a challenger, whose spread is what this machine does by itself. Every
action that agents were told is compared with the champion's own. Writes `benchmarks/results/serving_shadow.json`.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.system.files import write_json
from served.load import Served, ask, cpu_seconds, request

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.faulty_policies import TRIGGER, faulty_folder
from tests.support.policies import discrete_folder

RESULTS = Path(__file__).parent / "results" / "serving_shadow.json"
FAULTS = ("crash", "hang", "nan", "slow")
CONNECTIONS = 8
SLOWDOWN = 100
SOUND = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
TRIGGERING = SOUND + np.array([2 * TRIGGER, 0, 0, 0], dtype=np.float32)


def requests(observations: np.ndarray) -> list[bytes]:
    """A request for each observation."""
    return [
        request("/decide", {"agent_id": f"a{index % 32}", "episode_id": "e", "observation": row})
        for index, row in enumerate(observations)
    ]


def num_changed(answers: list[tuple[int, bytes]], expected: list[int]) -> int:
    """How many actions are not the expected ones."""
    return sum(orjson.loads(body)["action"] != expected[row] for row, body in answers)


def measure(champion: Path, challenger: Path | None, expected: list[int], seconds: float) -> dict[str, Any]:
    """One server under load; a challenger answers before the time that counts begins."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"LOOMRL_HOME": home}
        options: dict[str, Any] = {"rate": 1e9, "environment": environment, "challenger_folder": challenger}
        with ServerProcess("cartpole", champion_folder=champion, **options) as server, server.client() as client:
            assert server.process is not None
            host, port = server.url.removeprefix("http://").split(":")
            served = Served("loomrl", host, int(port), server.process.pid)
            ask(served, requests(SOUND), CONNECTIONS, 0.3)
            while challenger is not None and not client.status()["shadow"]["num_mirrored"]:
                time.sleep(0.02)
            before = cpu_seconds(served.pid)
            asked = ask(served, requests(TRIGGERING), CONNECTIONS, seconds, keep=True)
            used = cpu_seconds(served.pid) - before
            shadow = client.status()["shadow"]
    latencies = [latency for one in asked for latency in one.latencies]
    answers = [answer for one in asked for answer in one.answers]
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {
        "p50_us": round(float(p50) * 1e6),
        "p99_us": round(float(p99) * 1e6),
        "requests_per_second": round(len(latencies) / seconds),
        "server_cpu_us_per_request": round(used / len(latencies) * 1e6, 1),
        "num_actions": len(answers),
        "num_changed": num_changed(answers, expected),
        "shadow": {key: shadow[key] for key in ("num_mirrored", "num_dropped", "num_errors", "num_restarts")},
    }


def slow_iterations(folder: Path, champion: Path) -> tuple[int, float]:
    """Rounds of its loop that make a challenger 100 times as slow as the champion, and how slow it is with them."""
    least, most = (_seconds(faulty_folder(folder / str(rounds), champion, "slow", rounds)) for rounds in (100, 1_100))
    wanted = SLOWDOWN * _seconds(champion)
    rounds = max(1, round(100 + (wanted - least) / (most - least) * 1_000))
    made = _seconds(faulty_folder(folder / "made", champion, "slow", rounds))
    return rounds, made / _seconds(champion)


def _seconds(folder: Path) -> float:
    policy, samples = ServedPolicy.load(folder), []
    for _ in range(200):
        started = time.thread_time()
        policy.outputs(SOUND[:1])
        samples.append(time.thread_time() - started)
    return median(samples)


def summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios of the second to the first of each pair."""
    ratios = [round(pair["with"]["p99_us"] / pair["without"]["p99_us"], 3) for pair in pairs]
    runs = [pair["with"] for pair in pairs]
    return {
        "median_p99_ratio": round(median(ratios), 3),
        "p99_ratios": ratios,
        "num_actions": sum(run["num_actions"] for run in runs),
        "num_changed": sum(run["num_changed"] for run in runs),
        **{key: median(run[key] for run in runs) for key in ("p50_us", "p99_us", "requests_per_second")},
        "server_cpu_us_per_request": median(run["server_cpu_us_per_request"] for run in runs),
        "shadow": {key: sum(run["shadow"][key] for run in runs) for key in runs[0]["shadow"]},
    }


def run(num_pairs: int, seconds: float) -> dict[str, Any]:
    """All pairs, interleaved; which of a pair comes first alternates."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        champion = discrete_folder(folder / "champion")
        rounds, slowdown = slow_iterations(folder / "slow", champion)
        challengers = {fault: faulty_folder(folder / fault, champion, fault, rounds) for fault in FAULTS}
        expected = ServedPolicy.load(champion)(TRIGGERING).tolist()
        pairs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("none", *FAULTS)}
        for number in range(num_pairs):
            for name, found in pairs.items():
                order = ["without", "with"] if number % 2 else ["with", "without"]
                folders = {"without": None, "with": challengers.get(name)}
                found.append({one: measure(champion, folders[one], expected, seconds) for one in order})
                print(number, name, {one: found[-1][one]["p99_us"] for one in order}, flush=True)
    results = {name: summary(found) for name, found in pairs.items()}
    none = results.pop("none")
    low, high = np.quantile(none["p99_ratios"], (0.25, 0.75))  # half of the pairs without a challenger lie between
    for one in results.values():
        one["holds"] = one["num_changed"] == 0 and one["median_p99_ratio"] <= max(1.1, float(high))
    spread = [round(float(low), 3), round(float(high), 3)]
    return {"slowdown_of_slow": round(slowdown), "without_challenger": {**none, "spread": spread}, **results}


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.5, help="per server")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    settings = {"pairs": options.pairs, "seconds": options.seconds, "connections": CONNECTIONS}
    results = {"machine": machine, "settings": settings, **run(options.pairs, options.seconds)}
    write_json(options.output, results)
    print(orjson.dumps(results, option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    main()

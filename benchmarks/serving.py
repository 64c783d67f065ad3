"""How fast the policy server decides, every decision on record: `python benchmarks/serving.py`.

The load generator speaks plain HTTP over asyncio streams and shares the machine with the server, so the server's own
CPU time per request is the figure to trust; requests per second depend on what is left for the server.
Writes `benchmarks/results/serving.json`.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import uvloop
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms.actor_critic import ActorCriticPolicy
from loomrl.environment.spaces import space_to_json
from loomrl.export.graph import build_graph, tensors
from loomrl.files import sha256, write_atomic, write_json
from loomrl.serving.model import GRAPH, MANIFEST, ServedPolicy, open_session
from loomrl.serving.process import ServerProcess
from loomrl.types import EnvironmentSpec, PolicyManifest

RESULTS = Path(__file__).parent / "results" / "serving.json"
OBSERVATIONS = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)


def write_policy(folder: Path) -> Path:
    """A 64x64 policy for four observations and two actions, exported as the life cycle does."""
    observation, action = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)
    generator = torch.Generator().manual_seed(0)
    network = ActorCriticPolicy.for_spaces("ppo", observation, action, (64, 64), "tanh", True, generator).eval()
    graph = build_graph(network, 17)
    inputs, outputs = tensors(open_session(graph, "bench"))
    spaces = {"observation": space_to_json(observation), "action": space_to_json(action)}
    manifest = PolicyManifest(
        name="bench",
        onnx_sha256=sha256(graph),
        policy_digest="",
        snapshot_digest="",
        case_sha256="",
        environment=EnvironmentSpec(name="bench", version="0", entry_point="", **spaces),
        algorithm="ppo",
        action_kind="discrete",
        inputs=inputs,
        outputs=outputs,
        probe_observations=OBSERVATIONS[:8].tolist(),
        probe_actions=network(OBSERVATIONS[:8]).tolist(),
        opset=17,
    )
    write_atomic(folder / GRAPH, graph)
    manifest.write(folder / MANIFEST)
    return folder


def request(path: str, document: Any) -> bytes:
    """A whole HTTP request."""
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


async def ask(url: str, requests: list[bytes], seconds: float, latencies: list[float]) -> int:
    """One connection, one request after the other; returns how many were answered."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    deadline, count = time.perf_counter() + seconds, 0
    while (sent := time.perf_counter()) < deadline:
        writer.write(requests[count % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        latencies.append(time.perf_counter() - sent)
        count += 1
    writer.close()
    return count


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    server: ServerProcess, requests: list[bytes], connections: int, seconds: float, rows: int
) -> dict[str, Any]:
    """Requests per second, latency at the client, and the server's CPU time per request."""
    assert server.process is not None
    latencies: list[float] = []

    async def load() -> int:
        work = (ask(server.url, requests, seconds, latencies) for _ in range(connections))
        return sum(await asyncio.gather(*work))

    before, started = cpu_seconds(server.process.pid), time.perf_counter()
    count = uvloop.run(load())
    elapsed, used = time.perf_counter() - started, cpu_seconds(server.process.pid) - before
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {
        "connections": connections,
        "decisions_per_request": rows,
        "requests_per_second": round(count / elapsed),
        "decisions_per_second": round(count * rows / elapsed),
        "server_cpu_us_per_request": round(used / count * 1e6, 1),
        "server_cpu_us_per_decision": round(used / count / rows * 1e6, 2),
        "client_latency_p50_us": round(float(p50) * 1e6),
        "client_latency_p99_us": round(float(p99) * 1e6),
    }


def direct(folder: Path, rows: int) -> float:
    """Microseconds of the graph alone."""
    policy, obs, rounds = ServedPolicy.load(folder), OBSERVATIONS[:rows], 20_000 // rows
    started = time.perf_counter()
    for _ in range(rounds):
        policy.outputs(obs)
    return round((time.perf_counter() - started) / rounds * 1e6, 1)


def run(seconds: float) -> dict[str, Any]:
    """All measurements."""
    single = [request("/decide", {"agent_id": f"a{i % 32}", "observation": row}) for i, row in enumerate(OBSERVATIONS)]
    batch = [request("/decide", {"requests": [{"agent_id": "a", "observation": row} for row in OBSERVATIONS[:64]]})]
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": OBSERVATIONS[0]}
    infer = [request("/v2/models/bench/infer", {"inputs": [tensor], "outputs": [{"name": "action"}]})]
    results: dict[str, Any] = {"graph_us": {"batch_1": 0.0, "batch_64": 0.0}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_policy(Path(temporary) / "policy")
        results["graph_us"] = {"batch_1": direct(folder, 1), "batch_64": direct(folder, 64)}
        options: dict[str, Any] = {"rate": 1e9, "environment": {"LOOMRL_HOME": temporary}}
        with ServerProcess("bench", champion_folder=folder, **options) as server:
            measure(server, single, 8, 1.0, 1)  # warm up
            results["decide"] = measure(server, single, 32, seconds, 1)
            results["decide_one_connection"] = measure(server, single, 1, seconds, 1)
            results["decide_64"] = measure(server, batch, 8, seconds, 64)
            results["infer"] = measure(server, infer, 32, seconds, 1)
        with ServerProcess("bench", champion_folder=folder, challenger_folder=folder, **options) as server:
            results["decide_with_challenger"] = measure(server, single, 32, seconds, 1)
            shadow = server.client().status()["shadow"]
            results["decide_with_challenger"] |= {key: shadow[key] for key in ("num_mirrored", "num_dropped")}
    return results


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    results = {"machine": machine, **run(options.seconds)}
    write_json(options.output, results)
    print(orjson.dumps(results, option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    main()

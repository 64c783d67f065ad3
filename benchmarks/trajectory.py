"""The Trajectory API beside its reference: `make atropos`, then `python benchmarks/trajectory.py`.

The same load for both, one after the other, several times: environments post groups of 8 sequences of 512 tokens in
gzip, a trainer takes batches of 64 sequences in gzip. What counts is the server's CPU time per delivered group. Then,
for the hub alone: its memory with thousands of groups queued, and a thousand environments connected at once. Writes
`benchmarks/results/trajectory.json`.
"""

import argparse
import asyncio
import gzip
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop

from loomrl.language.trajectory.process import HubProcess
from loomrl.system.files import write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.atropos import environment, group, large_group, reference_server, registration

RESULTS = Path(__file__).parent / "results" / "trajectory.json"
NUM_ENVIRONMENTS, GROUP_SIZE, BATCH_SIZE = 8, 8, 64
_TICKS = os.sysconf("SC_CLK_TCK")


class Connection:
    """Requests one after the other over one connection."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", packed: bool = False) -> bytes:
        """The answer's body, as it came; RuntimeError for any status but 200."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=2**24)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Accept-Encoding: gzip"]
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += ["Content-Encoding: gzip"] if packed else []
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {head.decode()}")
        return await self._reader.readexactly(_length(head))

    def close(self) -> None:
        """End the connection."""
        if self._writer is not None:
            self._writer.close()


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def as_json(value: Any) -> bytes:
    """A body."""
    return json.dumps(value).encode()


def bodies(count: int) -> list[bytes]:
    """Different groups as environments send them, packed."""
    rng = random.Random(0)
    return [gzip.compress(as_json(large_group(rng))) for _ in range(count)]


class Process:
    """What a server's process has used."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_seconds(self) -> float:
        """User and system time so far, of all threads."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self, name: str = "VmRSS") -> float:
        """Resident memory: now, or at its highest (`VmHWM`)."""
        text = (self._folder / "status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0]) / 1_024


def running_hub(stack: ExitStack, **options: object) -> tuple[str, Process]:
    """A hub with an empty database, and its process."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    hub = stack.enter_context(HubProcess(database_url=f"sqlite:///{folder}/hub.db", **options))
    assert hub.process is not None
    return hub.url, Process(hub.process.pid)


def running_reference(stack: ExitStack) -> tuple[str, Process]:
    """The reference's server, and its process."""
    url, pid = stack.enter_context(reference_server())
    return url, Process(pid)


async def deliver(url: str, posted: list[bytes]) -> list[float]:
    """Post everything and take everything; returns the seconds of each post."""
    trainer = Connection(url)
    await trainer.ask("POST", "/register", as_json(registration(BATCH_SIZE)))
    await trainer.ask("GET", "/batch")
    seconds: list[float] = []
    waiting = iter(posted)

    async def environment_posts() -> None:
        connection = Connection(url)
        for body in waiting:
            started = time.perf_counter()
            await connection.ask("POST", "/scored_data", body, packed=True)
            seconds.append(time.perf_counter() - started)
        connection.close()

    async def trainer_takes() -> None:
        num_left = len(posted) * GROUP_SIZE // BATCH_SIZE
        while num_left:
            if len(await trainer.ask("GET", "/batch")) > 1_000:  # a batch; without one, `null`
                num_left -= 1
            else:
                await asyncio.sleep(0.1)

    await asyncio.gather(trainer_takes(), *(environment_posts() for _ in range(NUM_ENVIRONMENTS)))
    trainer.close()
    return seconds


def measure_delivery(start: Callable[[ExitStack], tuple[str, Process]], posted: list[bytes]) -> dict[str, Any]:
    """One server under the load; a first part of it warms up and does not count."""
    with ExitStack() as stack:
        url, process = start(stack)
        uvloop.run(deliver(url, posted[:BATCH_SIZE]))
        before, started = process.cpu_seconds(), time.perf_counter()
        seconds = uvloop.run(deliver(url, posted))
        wall, cpu = time.perf_counter() - started, process.cpu_seconds() - before
        p50, p99 = np.quantile(seconds, (0.5, 0.99))
        return {
            "cpu_ms_per_group": round(1e3 * cpu / len(posted), 3),
            "groups_per_second": round(len(posted) / wall, 1),
            "post_ms": {"p50": round(1e3 * p50, 1), "p99": round(1e3 * p99, 1)},
            "memory_mb": round(process.memory_mb("VmHWM"), 1),
        }


def compare_delivery(num_groups: int, num_rounds: int) -> dict[str, Any]:
    """Both servers, in turns."""
    posted = bodies(num_groups)
    runs: dict[str, list[dict[str, Any]]] = {"reference": [], "hub": []}
    for _ in range(num_rounds):
        runs["reference"].append(measure_delivery(running_reference, posted))
        runs["hub"].append(measure_delivery(running_hub, posted))
    pairs = zip(runs["reference"], runs["hub"], strict=True)
    ratios = [round(one["cpu_ms_per_group"] / other["cpu_ms_per_group"], 1) for one, other in pairs]
    return {
        "num_groups": num_groups,
        "body_bytes": len(gzip.decompress(posted[0])),
        **runs,
        "cpu_ratio": {"median": median(ratios), "min": min(ratios), "max": max(ratios)},
    }


async def fill(url: str, posted: list[bytes], count: int) -> None:
    """Queue so many groups, with nobody to take them."""
    connections = [Connection(url) for _ in range(NUM_ENVIRONMENTS)]
    await connections[0].ask("POST", "/register", as_json(registration(BATCH_SIZE)))

    async def post(connection: Connection, number: int) -> None:
        for index in range(number, count, NUM_ENVIRONMENTS):
            await connection.ask("POST", "/scored_data", posted[index % len(posted)], packed=True)
        connection.close()

    await asyncio.gather(*(post(connection, number) for number, connection in enumerate(connections)))


async def drain(url: str, num_batches: int) -> float:
    """Take so many batches; returns the seconds of the first one, which forms all."""
    connection, seconds = Connection(url), 0.0
    for number in range(num_batches):
        started = time.perf_counter()
        assert len(await connection.ask("GET", "/batch")) > 1_000
        seconds = time.perf_counter() - started if number == 0 else seconds
    connection.close()
    return seconds


def measure_memory(num_groups: int) -> dict[str, Any]:
    """A hub's memory with many groups queued, and when they are taken."""
    posted = bodies(64)
    with ExitStack() as stack:
        url, process = running_hub(stack)
        before = process.memory_mb()
        uvloop.run(fill(url, posted, num_groups))
        queued = process.memory_mb()
        first = uvloop.run(drain(url, num_groups * GROUP_SIZE // BATCH_SIZE))
        return {
            "num_groups": num_groups,
            "json_mb": round(num_groups * len(gzip.decompress(posted[0])) / 2**20),
            "memory_mb": {
                "before": round(before, 1),
                "queued": round(queued, 1),
                "highest": round(process.memory_mb("VmHWM"), 1),
            },
            "first_batch_seconds": round(first, 3),
        }


async def connect(url: str, count: int, num_polls: int) -> list[float]:
    """So many environments at once: register, post a group each, ask for their status; seconds of those requests."""
    trainer = Connection(url)
    await trainer.ask("POST", "/register", as_json(registration(BATCH_SIZE)))
    await trainer.ask("GET", "/batch")
    connections, seconds = [Connection(url) for _ in range(count)], []
    everybody = asyncio.Barrier(count)

    async def live(connection: Connection) -> None:
        joined = json.loads(await connection.ask("POST", "/register-env", as_json(environment(2))))
        await everybody.wait()  # all of them are connected now
        for _ in range(num_polls):
            started = time.perf_counter()
            await connection.ask("POST", "/scored_data", as_json(group(2, env_id=joined["env_id"])))
            await connection.ask("GET", "/status-env", as_json({"env_id": joined["env_id"]}))
            seconds.append(time.perf_counter() - started)
        connection.close()

    await asyncio.gather(*map(live, connections))
    assert json.loads(await trainer.ask("GET", "/status"))["queue_size"] == count * num_polls
    trainer.close()
    return seconds


def measure_connections(count: int, num_polls: int = 5) -> dict[str, Any]:
    """A hub with many environments connected at once."""
    with ExitStack() as stack:
        url, process = running_hub(stack)
        before, started = process.cpu_seconds(), time.perf_counter()
        seconds = uvloop.run(connect(url, count, num_polls))
        p50, p99 = np.quantile(seconds, (0.5, 0.99))
        return {
            "num_environments": count,
            "num_failures": 0,
            "post_and_status_ms": {"p50": round(1e3 * p50, 1), "p99": round(1e3 * p99, 1)},
            "requests_per_second": round(count * (2 * num_polls + 1) / (time.perf_counter() - started)),
            "cpu_seconds": round(process.cpu_seconds() - before, 2),
            "memory_mb": round(process.memory_mb("VmHWM"), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=512, help="delivered by each server in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--environments", type=int, default=1_000)
    options = parser.parse_args()
    found = {
        "machine": {"processor": platform.machine(), "num_processors": os.cpu_count(), "load": os.getloadavg()[0]},
        "delivery": compare_delivery(options.groups, options.rounds),
        "queued": measure_memory(options.queued),
        "connected": measure_connections(options.environments),
    }
    write_json(RESULTS, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

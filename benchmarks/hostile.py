"""What 200 hostile connections cost a policy server and its one honest agent: `python -m benchmarks.hostile`.

A server with tokens. The honest agent asks for a decision every 5 ms and tells what came of it; first alone, then
beside 200 connections of another process, 40 of each kind of `KINDS`, each opened again as soon as it is closed; then
alone again. Beside them, what the server holds in memory. Afterwards the audit log must hold every decision that the
agent was told, with its reward, and nothing else. Writes `benchmarks/results/hostile.json`; ends with 1 where memory
has grown by more than 64 MiB, p99 is over three times that of the quiet rounds, or the log is wrong.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.policies import OBSERVATIONS, discrete_folder

from benchmarks.machine import measured_on
from loomrl.serving.client import PolicyClient
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.system.files import write_json
from loomrl.system.http.tokens import add

RESULTS = Path(__file__).parent / "results" / "hostile.json"
MIB = 2**20
MOST_MIB, MOST_SLOWDOWN, PER_KIND = 64, 3.0, 40
_ENCODINGS = itertools.cycle([b"", b"content-encoding: gzip\r\n"])  # the server reads these two in different ways
HEAD = b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


async def slow(_token: str) -> AsyncIterator[bytes]:
    """Headers, byte after byte."""
    for byte in HEAD * 1_000:
        yield bytes([byte])
        await asyncio.sleep(0.2)


async def endless(_token: str) -> AsyncIterator[bytes]:
    """An address that does not end."""
    yield b"GET /"
    while True:
        yield b"a" * 2**16


async def unfinished(token: str) -> AsyncIterator[bytes]:
    """A body of 4 MiB with a good token, of which the last byte never comes."""
    yield HEAD + b"authorization: Bearer " + token.encode() + b"\r\ncontent-length: 4194304\r\n\r\n"
    for _ in range(63):
        yield b" " * 2**16
    await asyncio.sleep(3_600.0)


async def malformed(token: str) -> AsyncIterator[bytes]:
    """Whole bodies of 1 MiB that are lists in lists, with a good token, one after the other."""
    body = b'{"agent_id":"hostile","observation":' + b"[" * (MIB // 2) + b"]" * (MIB // 2) + b"}"
    head = HEAD + b"authorization: Bearer " + token.encode() + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
    while True:
        yield head + body


async def at_the_limit(_token: str) -> AsyncIterator[bytes]:
    """Bodies without a token, in chunks, as fast as they are taken; every other one is said to be compressed."""
    yield HEAD + next(_ENCODINGS) + b"transfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + b"x" * 2**16 + b"\r\n"


KINDS: tuple[Callable[[str], AsyncIterator[bytes]], ...] = (slow, endless, unfinished, malformed, at_the_limit)


async def attack(host: str, port: int, kind: Callable[[str], AsyncIterator[bytes]], token: str, count: Any) -> None:
    """One connection, opened again whenever it is closed."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            with count.get_lock():
                count.value += 1
            swallowing = asyncio.create_task(swallow(reader))
            async for piece in kind(token):
                writer.write(piece)
                await writer.drain()
                if swallowing.done():
                    break
            swallowing.cancel()
            writer.close()
        await asyncio.sleep(0.05)


async def swallow(reader: asyncio.StreamReader) -> None:
    """Read what is answered until the server closes."""
    with contextlib.suppress(OSError):
        while await reader.read(2**16):
            continue


def attack_all(host: str, port: int, token: str, count: Any) -> None:
    """In a process of its own."""

    async def run() -> None:
        await asyncio.gather(*(attack(host, port, kind, token, count) for kind in KINDS for _ in range(PER_KIND)))

    asyncio.run(run())


def resident_mib(process: int) -> float:
    """What a process holds in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


class Honest:
    """An agent that asks on one connection, and what it was told."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self.told: list[str] = []

    def ask(self, seconds: float) -> list[float]:
        """Decisions for so long; seconds that each took."""
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            decision = self._client.decide("honest", OBSERVATIONS[len(self.told) % len(OBSERVATIONS)])
            took.append(time.perf_counter() - begun)
            self._client.feedback(decision.decision_id, 1.0)
            self.told.append(decision.decision_id)
            time.sleep(0.005)
        return took


def measure(seconds: float) -> dict[str, Any]:
    """One server, its agent alone, beside the attackers, and alone again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = {who: add(folder / "tokens", who, ["decide"]) for who in ("honest", "hostile")}
        environment = {"LOOMRL_HOME": str(folder / "home"), "LOOMRL_TOKENS_FILE": str(folder / "tokens")}
        champion = discrete_folder(folder / "champion")
        count = multiprocessing.Value("q", 0)
        with ServerProcess("cartpole", champion_folder=champion, environment=environment, rate=1e6) as server:
            assert server.process is not None
            host, port = server.url.removeprefix("http://").split(":")
            with server.client(token=tokens["honest"]) as client:
                agent = Honest(client)
                agent.ask(2.0)
                before, quiet = resident_mib(server.process.pid), agent.ask(seconds)
                attackers = multiprocessing.Process(
                    target=attack_all, args=(host, int(port), tokens["hostile"], count), daemon=True
                )
                attackers.start()
                most = [before]
                done = threading.Event()
                watcher = threading.Thread(target=watch, args=(server.process.pid, most, done))
                watcher.start()
                while count.value < len(KINDS) * PER_KIND:
                    time.sleep(0.1)
                beside = agent.ask(3 * seconds)
                done.set()
                watcher.join()
                attackers.terminate()
                attackers.join()
                quiet += agent.ask(seconds)
        os.environ["LOOMRL_HOME"] = str(folder / "home")
        kept = list(records("cartpole"))
    decided = [one["decision_id"] for one in kept if one["kind"] == "decision"]
    rewarded = [one["decision_id"] for one in kept if one["kind"] == "feedback"]
    p99 = {name: float(np.quantile(took, 0.99)) for name, took in (("quiet", quiet), ("beside", beside))}
    return {
        "connections_at_once": len(KINDS) * PER_KIND,
        "connections_opened": count.value,
        "decisions": len(agent.told),
        "p99_quiet_ms": 1_000 * p99["quiet"],
        "p99_beside_ms": 1_000 * p99["beside"],
        "p99_ratio": p99["beside"] / p99["quiet"],
        "memory_before_mib": before,
        "memory_grown_mib": max(most) - before,
        "is_log_right": decided == agent.told == rewarded,
    }


def watch(process: int, most: list[float], done: threading.Event) -> None:
    """Look at the memory until it is done."""
    while not done.wait(0.05):
        most.append(resident_mib(process))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each quiet round; three times as long beside")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = [measure(arguments.seconds) for _ in range(arguments.rounds)]
    for one in rounds:
        print(orjson.dumps(one, option=orjson.OPT_INDENT_2).decode(), flush=True)
    write_json(RESULTS, {"machine": measured_on(), "seconds": arguments.seconds, "rounds": rounds})
    right = all(
        one["memory_grown_mib"] <= MOST_MIB and one["p99_ratio"] <= MOST_SLOWDOWN and one["is_log_right"]
        for one in rounds
    )
    sys.exit(not right)


if __name__ == "__main__":
    main()

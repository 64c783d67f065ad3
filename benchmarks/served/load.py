"""Load on a server: connections that ask again as soon as they are answered, and what that costs the server.

The generator shares the machine with the server, so the server's own CPU time per request, of all its processes, is the
figure to trust; requests per second depend on what is left for it.
"""

import asyncio
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

_LUA = rb"""
local place = 0
function request()
  place = place % #requests + 1
  return requests[place]
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "p50_us": %.1f, "p99_us": %.1f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout
  ))
end
"""
# LoomRL's processes beside the one that answers, by what their commands name, in earlier commits too.
FOLLOWERS = {
    b".guardian_child": "guardian",
    b".guardian.child": "guardian",
    b".shadow_child": "shadow",
    b".mirror.child": "shadow",
}


@dataclass(frozen=True)
class Served:
    """A running server: where it answers, and the process it began as."""

    name: str
    host: str
    port: int
    pid: int


def request(path: str, document: Any, token: str = "", binary: bytes = b"") -> bytes:
    """A whole HTTP request with a JSON body, and V2 tensors as bytes behind it if there are any."""
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    body = text + binary
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: application/{'octet-stream' if binary else 'json'}",
        f"Content-Length: {len(body)}",
    ]
    if binary:
        lines.append(f"Inference-Header-Content-Length: {len(text)}")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Asking(asyncio.Protocol):
    """One connection: a request, its answer, the next request, until the deadline. `keep` keeps what was answered."""

    def __init__(
        self, requests: list[bytes], first: int, deadline: float, done: asyncio.Future[None], keep: bool
    ) -> None:
        self._requests, self._next, self._deadline, self._done = requests, first, deadline, done
        self._buffer, self._body, self._wanted, self._sent = b"", 0, -1, 0.0
        self._keep = keep
        self.latencies: list[float] = []
        self.answers: list[tuple[int, bytes]] = []  # which request, and the body of its answer
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._next])

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._wanted < 0:
            head, found, _ = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(RuntimeError(self._buffer[:500].decode(errors="replace")))
                return
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._body = len(head) + 4
            self._wanted = self._body + int(length)
        if len(self._buffer) < self._wanted:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent)
        if self._keep:
            self.answers.append((self._next, self._buffer[self._body :]))
        self._buffer, self._wanted = b"", -1
        self._next = (self._next + 1) % len(self._requests)
        if now < self._deadline:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
        self._transport.close()


def ask(served: Served, requests: list[bytes], connections: int, seconds: float, keep: bool = False) -> list[Asking]:
    """Have so many connections ask for so long; returns them."""
    return uvloop.run(_ask(served, requests, connections, seconds, keep))


async def _ask(served: Served, requests: list[bytes], connections: int, seconds: float, keep: bool) -> list[Asking]:
    loop, deadline = asyncio.get_running_loop(), time.perf_counter() + seconds
    ends, asking = [loop.create_future() for _ in range(connections)], []
    for number, end in enumerate(ends):
        protocol = Asking(requests, number * 7 % len(requests), deadline, end, keep)
        await loop.create_connection(lambda made=protocol: made, served.host, served.port)
        asking.append(protocol)
    await asyncio.gather(*ends)
    return asking


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> Counter[str]:
    """The same of a process and all that came of it, by what they do."""
    total, waiting = Counter[str](), [pid]
    while waiting:
        number = waiting.pop()
        try:
            children = [Path(f"/proc/{number}/task/{task}/children") for task in os.listdir(f"/proc/{number}/task")]
            waiting += [int(child) for path in children for child in path.read_text().split()]
            command = Path(f"/proc/{number}/cmdline").read_bytes()
            who = next((name for part, name in FOLLOWERS.items() if part in command), "server")
            total[who] += cpu_seconds(number)
        except FileNotFoundError:
            continue  # it has just ended
    return total


def measure(served: Served, requests: list[bytes], connections: int, seconds: int, rows: int = 1) -> dict[str, Any]:
    """Requests per second, latency at the client, and the server's CPU time per request."""
    load(served, requests, connections, 1)  # warm up
    before = tree_cpu_seconds(served.pid)
    found = load(served, requests, connections, seconds)
    used_by = tree_cpu_seconds(served.pid)
    used_by.subtract(before)
    used, count = used_by.total(), found["requests"]
    return {
        "connections": connections,
        "rows": rows,
        "requests": count,
        "decisions_per_second": count * rows / found["seconds"],
        "cpu_us_per_request": used / count * 1e6,
        "cpu_us_per_decision": used / count / rows * 1e6,
        "cpu_us_per_decision_by": {who: seconds / count / rows * 1e6 for who, seconds in used_by.items()},
        "client_p50_us": found["p50_us"],
        "client_p99_us": found["p99_us"],
    }


def load(served: Served, requests: list[bytes], connections: int, seconds: int) -> dict[str, float]:
    """What wrk makes of it, one thread of it: a generator that costs the machine little.

    Raises:
        RuntimeError: without wrk, for an answer of 400 or above, and for one that takes two seconds.
    """
    if shutil.which("wrk") is None:
        raise RuntimeError("the load comes from wrk: apt-get install wrk")
    with tempfile.NamedTemporaryFile("wb", suffix=".lua") as script:
        script.write(_script(requests))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script.name]
        done = subprocess.run(
            [*command, f"http://{served.host}:{served.port}/"], capture_output=True, text=True, check=False
        )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr}{done.stdout}")
    found: dict[str, float] = orjson.loads(done.stdout.splitlines()[-1])
    if found["errors"] or not found["requests"]:
        raise RuntimeError(f"{served.name} answered {found['errors']:.0f} of {found['requests']:.0f} with an error")
    return found


def _script(requests: list[bytes]) -> bytes:
    """Lua for wrk: the requests in turn, and figures as JSON in the last line."""
    table = b",\n".join(b'"%b"' % b"".join(b"\\%03d" % byte for byte in one) for one in requests)
    return b"local requests = {" + table + b"}\n" + _LUA

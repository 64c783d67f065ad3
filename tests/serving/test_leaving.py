"""Clients that leave before they are answered cost nothing: no failure is logged, and nobody waits for them."""

import os
import random
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from loomrl.serving.process import ServerProcess
from tests.support.atropos import group
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.several_workers import pids

HEAD = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
BODY = b'{"agent_id": "a", "observation": %b}' % str(OBSERVATIONS[0].tolist()).encode()
# By uvicorn's way, as what a page of the server's own asks for goes.
DECIDE = (
    b"POST /decide HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-type: application/json\r\n"
)
DECIDE += b"content-length: %d\r\n%%b\r\n%b" % (len(BODY), BODY)
ASKED = [
    3 * (HEAD % b"/openapi.json"),  # made in a thread, so that their senders are gone by then
    HEAD % b"/openapi.json",
    HEAD % b"/openapi.json" + b"no request\r\n\r\n",
    5 * (HEAD % b"/status"),
    2 * (HEAD % b"/dashboard/data"),
    3 * (DECIDE % b""),
    DECIDE % b"expect: 100-continue\r\n",
    3 * (DECIDE % b"").replace(b"sec-fetch-site: same-origin\r\n", b""),
]
GROUP = orjson.dumps(group(2))
POST = b"POST /scored_data HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(GROUP), GROUP)
ASKED_OF_HUBS = [3 * POST, POST, 2 * (HEAD % b"/batch"), HEAD % b"/hub" + POST, POST + b"no request\r\n\r\n"]
Connect = Callable[[], socket.socket]


def leave(connect: Connect, asked: list[bytes], seed: int, num_clients: int = 100) -> None:
    """Ask for all of it or a part, and go: without a word, by a reset, or after a byte of the answer."""
    rng = random.Random(seed)
    for number in range(num_clients):
        data = asked[number % len(asked)]
        with connect() as connection:
            connection.settimeout(0.05)
            try:
                connection.sendall(data[: rng.choice((len(data), len(data), rng.randrange(1, len(data))))])
                if rng.random() < 0.2:
                    connection.recv(1)
            except OSError:
                pass  # nothing came in time, or the server has closed
            if connection.family == socket.AF_INET and rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def all_leave(connects: list[Connect], asked: list[bytes]) -> None:
    threads = [threading.Thread(target=leave, args=(connect, asked, seed)) for seed, connect in enumerate(connects * 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_tcp(url: str) -> Connect:
    host, port = url.removeprefix("http://").split(":")
    return lambda: socket.create_connection((host, int(port)))


def by_socket(path: Path) -> Connect:
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)  # its path may be longer than there is room for
        try:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        return connection

    return connect


def assert_quiet(log: str) -> None:
    assert "Traceback" not in log
    assert "Exception" not in log


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.long_cases("2")
def test_no_failure_of_a_policy_server_is_logged(loomrl_home: Path, tmp_path: Path, workers: int) -> None:
    server = ServerProcess(
        "cartpole",
        champion_folder=discrete_folder(tmp_path / "champion"),
        rate=1e6,
        workers=workers,
        environment={"LOOMRL_HOME": str(loomrl_home)},
    )
    with server, server.client() as client:
        num_workers = len(pids(server))
        doors = sorted(loomrl_home.rglob("*.sock"))
        assert len(doors) == (num_workers if workers > 1 else 0)
        all_leave([by_tcp(server.url), *map(by_socket, doors)], ASKED)
        assert client.decide("a", OBSERVATIONS[0]).role == "champion"
        assert server.process is not None
        server.process.terminate()
        server.process.wait()  # what is under way is answered before
        assert_quiet(server.log())


def test_nor_of_a_hub() -> None:
    with HubProcess() as hub, HubClient(hub.url) as trainer:
        trainer.register(batch_size=2, max_token_len=64, num_steps=100)
        all_leave([by_tcp(hub.url)], ASKED_OF_HUBS)
        hub.stop()
        assert_quiet(hub.log())

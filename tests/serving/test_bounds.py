"""What senders may leave with a server before it knows who they are: little, and not for long."""

import asyncio
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from loomrl.serving.process import ServerProcess
from loomrl.system.http.intake import Intake, IntakeLimits
from loomrl.system.http.tokens import add
from tests.support.hot_connections import LIVE, Clock, Story, on_a_connection, status_of
from tests.support.policies import OBSERVATIONS, discrete_folder

MIB = 2**20
ASK = orjson.dumps({"agent_id": "a", "observation": OBSERVATIONS[0].tolist()})
CHUNKED = b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n%b\r\n"
BOUNDS = IntakeLimits()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A server that wants tokens, and one of an agent's."""
    folder = tmp_path_factory.mktemp("policy")
    token = add(folder / "tokens", "agent", ["decide"])
    environment = {"LOOMRL_HOME": str(tmp_path_factory.mktemp("home")), "LOOMRL_OPERATOR_TOKEN": ""}
    environment |= {"LOOMRL_TOKENS_FILE": str(folder / "tokens")}
    options = {"champion_folder": discrete_folder(folder / "champion"), "rate": 1e6}
    with ServerProcess("cartpole", environment=environment, **options) as started:
        yield started, token


def connect(server: ServerProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=600)


def resident_mib(server: ServerProcess) -> float:
    assert server.process is not None
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096 / MIB


def sent_until_closed(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send a piece again and again until the server has closed; how many bytes went."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


def answer_of(connection: socket.socket) -> bytes:
    """Everything that is answered until the server closes."""
    found = b""
    try:
        while part := connection.recv(2**16):
            found += part
    except ConnectionError:
        pass
    return found


def answered(connection: socket.socket) -> bytes:
    """What is answered so far."""
    connection.setblocking(False)
    try:
        return connection.recv(2**16)
    except (BlockingIOError, ConnectionError):
        return b""


def decides(server: ServerProcess, token: str) -> None:
    with server.client(token=token) as client:
        assert client.decide("a", OBSERVATIONS[0]).role == "champion"


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: " + b"y" * 60_000 + b"\r\n"),  # many headers
        (b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"a:b\r\n" * 10_000),  # tiny ones
        (b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"y" * 2**16),  # one without end
        (b"GET /", b"y" * 2**16),  # an address without end
        (b"GE", b"T" * 2**16),
    ],
)
def test_headers_without_end_are_not_kept(guarded: tuple[ServerProcess, str], begun: bytes, piece: bytes) -> None:
    server, token = guarded
    decides(server, token)
    before = resident_mib(server)
    with connect(server) as connection:
        connection.sendall(begun)
        sent = sent_until_closed(connection, piece, 128 * MIB)
    assert sent < 32 * MIB  # what sockets hold on the way
    assert resident_mib(server) - before < 16
    decides(server, token)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /%b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % (b"y" * BOUNDS.max_url_bytes), 414),
        (b"GET /v2 HTTP/1.1\r\nhost: 127.0.0.1\r\nx: %b\r\n\r\n" % (b"y" * (BOUNDS.max_head_bytes + 2**13)), 431),
        (b"GET /v2 HTTP/1.1\r\nhost: 127.0.0.1\r\n%b\r\n" % (b"a: b\r\n" * BOUNDS.max_headers), 431),
    ],
)
def test_what_is_too_long_is_named(guarded: tuple[ServerProcess, str], request_: bytes, status: int) -> None:
    with connect(guarded[0]) as connection:
        connection.sendall(request_)
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"longer than" in answer or b"more than" in answer


def test_large_headers_within_the_bounds_are_read(guarded: tuple[ServerProcess, str]) -> None:
    lines = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 300) for number in range(90))
    with connect(guarded[0]) as connection:
        connection.sendall(b"GET /v2?q=%b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n" % (b"y" * 2_000))
        connection.sendall(lines + b"\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 200 ")


def test_unfinished_bodies_hold_so_much_and_no_more(guarded: tuple[ServerProcess, str]) -> None:
    server, token = guarded
    decides(server, token)
    before = resident_mib(server)
    head = b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(150)]
        for connection in connections:
            connection.sendall(head % (token.encode(), 4 * MIB))
            sent_until_closed(connection, b" " * 2**18, 3 * MIB)
        decides(server, token)
        assert resident_mib(server) - before < 64
        answers = [answered(connection) for connection in connections]
    assert any(b" 503 " in answer and b"retry-after" in answer for answer in answers)
    decides(server, token)


def test_who_shows_no_token_is_answered_before_the_body_comes(guarded: tuple[ServerProcess, str]) -> None:
    for path in (b"/decide", b"/override"):
        with connect(guarded[0]) as connection:
            connection.sendall(b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n" % path)
            answer = answer_of(connection)  # until the server closes: it waits for nothing more
        assert answer.startswith(b"HTTP/1.1 401 "), path


@pytest.mark.parametrize("authorized", [False, True])
def test_a_refused_body_in_chunks_is_not_read_on(guarded: tuple[ServerProcess, str], authorized: bool) -> None:
    server, token = guarded
    line = b"authorization: Bearer %b\r\n" % token.encode() if authorized else b""
    with connect(server) as connection:
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(answer_of(connection)))
        reader.start()
        connection.sendall(CHUNKED % line)
        assert sent_until_closed(connection, b"10000\r\n" + b" " * 2**16 + b"\r\n", 256 * MIB) < 32 * MIB
        reader.join()
    assert found[0].startswith(b"HTTP/1.1 413 " if authorized else b"HTTP/1.1 401 ")
    decides(server, token)


def test_a_body_in_tiny_chunks_takes_no_more_room_than_its_bytes(guarded: tuple[ServerProcess, str]) -> None:
    server, token = guarded
    decides(server, token)
    before = resident_mib(server)
    with connect(server) as connection:
        connection.sendall(CHUNKED % (b"authorization: Bearer %b\r\n" % token.encode()))
        connection.sendall(b"2\r\n  \r\n" * (MIB // 2))
        decides(server, token)
        assert resident_mib(server) - before < 16
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(ASK), ASK))
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200 ")


def test_many_requests_behind_a_body_wait_outside(guarded: tuple[ServerProcess, str]) -> None:
    server, token = guarded
    decides(server, token)
    before = resident_mib(server)
    head = b"POST /v2/repository/index HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 3\r\n\r\n"
    many = b"{ }" + LIVE * 4_000  # the server takes all of it at once
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connect(server))
            connection.sendall(head)
            connection.sendall(many)
        decides(server, token)
        assert resident_mib(server) - before < 64


# --- time, by a clock that is put forward -----------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", LIVE[:10], LIVE[:-2]])
def test_headers_must_come_in_time(begun: bytes, loomrl_home: Path, tmp_path: Path) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(begun)
        await clock.pass_by(0.0)
        await clock.pass_by(0.9 * BOUNDS.head_seconds)
        assert not reader.at_eof()
        await clock.pass_by(0.2 * BOUNDS.head_seconds)
        await clock.pass_by(1.0)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ") if begun else answer == b""

    told(story, tmp_path)


def test_a_body_must_come_in_time_and_a_large_one_has_longer(loomrl_home: Path, tmp_path: Path) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900000\r\n\r\n")
        more_seconds = 10
        writer.write(b" " * int(more_seconds * BOUNDS.least_bytes_per_second))
        await clock.pass_by(0.0)
        await clock.pass_by(BOUNDS.request_seconds + 0.5 * more_seconds)
        await clock.pass_by(1.0)
        assert not reader.at_eof()
        await clock.pass_by(more_seconds)
        await clock.pass_by(1.0)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")

    told(story, tmp_path)


def test_a_whole_request_ends_the_time(loomrl_home: Path, tmp_path: Path) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        for _ in range(2):
            writer.write(LIVE[:10])
            await clock.pass_by(0.0)
            await clock.pass_by(0.9 * BOUNDS.head_seconds)
            writer.write(LIVE[10:])
            assert await status_of(reader) == 200

    told(story, tmp_path)


TOO_LARGE = b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n%b\r\n[["


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (b"GET /" + b"a" * 2 * BOUNDS.max_url_bytes, 414),
        (TOO_LARGE % b"", 413),
        (TOO_LARGE % b"content-encoding: gzip\r\n", 413),  # which goes uvicorn's way
    ],
)
def test_who_was_refused_is_answered_at_once_and_closed_upon_later(
    refused: bytes, status: int, loomrl_home: Path, tmp_path: Path
) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(refused)
        assert await status_of(reader) == status
        await clock.pass_by(0.0)  # a busy machine may take some time of its own
        assert not reader.at_eof()
        writer.write(LIVE)  # it gets no answer
        await clock.pass_by(1.5 * BOUNDS.linger_seconds)
        assert await reader.read() == b""

    told(story, tmp_path)


def test_so_many_refused_connections_stay_open_and_no_more() -> None:
    class Refused:
        held, is_closed = 0, False

        def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
            raise AssertionError("it was refused before")

        def seconds_left(self, now: float) -> float:
            return 1.0

        def num_untaken(self) -> int:
            return 0

        def close(self) -> None:
            self.is_closed = True

        drop = close

    async def story(clock: Clock) -> None:
        intake = Intake(IntakeLimits(max_lingering=2))
        first, second, third, fourth = connections = [Refused() for _ in range(4)]
        for connection in connections[:3]:
            intake.close(connection)
        assert [one.is_closed for one in connections] == [False, False, True, False]
        intake.connection_closed(first)  # its client went: there is room for another, and nothing is left to close
        intake.close(fourth)
        assert not fourth.is_closed
        await clock.pass_by(2.0)
        assert [one.is_closed for one in connections] == [False, True, True, True]

    with asyncio.Runner(loop_factory=Clock) as runner:
        clock = runner.get_loop()
        assert isinstance(clock, Clock)
        runner.run(story(clock))


def told(story: Story, tmp_path: Path) -> None:
    on_a_connection(story, discrete_folder(tmp_path / "champion"))


def test_a_large_body_that_its_sender_cannot_pay_for_is_not_read(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "champion")
    head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with ServerProcess("cartpole", champion_folder=folder, body_bytes_per_second=1_000.0) as server:
        for path in (b"/decide", b"/v2/repository/index"):  # answered at once, and by uvicorn
            with connect(server) as connection:
                connection.sendall(head % (path, 3 * MIB) + b"[" * 3 * MIB)
                assert connection.recv(2**16).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.1 429 "))
            with connect(server) as connection:
                connection.sendall(head % (path, 3 * MIB))
                answer = answer_of(connection)  # it is answered and closed though nothing of the body came
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"connection: close" in answer
        with connect(server) as connection:
            connection.sendall(head % (b"/decide", len(ASK)) + ASK)
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200 ")


def test_blank_lines_without_end_are_not_read(guarded: tuple[ServerProcess, str]) -> None:
    server, _ = guarded
    health = b"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    for before in (b"", health):
        with connect(server) as connection:
            connection.sendall(before)
            assert sent_until_closed(connection, b"\r\n" * 30_000, 200 * MIB) < 50 * MIB
    with connect(server) as connection:  # some are allowed before each request
        last = health.replace(b"127.0.0.1", b"127.0.0.1\r\nconnection: close")
        connection.sendall((b"\r\n" * 100 + health) * 200 + last)
        assert answer_of(connection).count(b"HTTP/1.1 200") == 201

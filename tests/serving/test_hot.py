"""Connections that agents keep: open while they are used, whoever answers, and closed once they idle."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
import uvicorn
from inside import Inside
from policies import OBSERVATIONS, discrete_folder
from uvicorn.server import ServerState

from loomrl.serving.hot import protocol_of
from loomrl.serving.settings import ServerSettings

BODY = orjson.dumps({"agent_id": "a", "observation": OBSERVATIONS[0].tolist()})
DECIDE = b"POST /decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"  # uvicorn's own way
KEPT = 5.0  # seconds that uvicorn keeps an idle connection


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    async def pass_by(self, seconds: float) -> None:
        """Let timers run as if so much time had passed."""
        self.ahead += seconds
        for _ in range(10):  # turns of the loop, in each of which it reads what was sent
            await asyncio.sleep(0)


Story = Callable[[Clock, StreamReader, StreamWriter], Awaitable[None]]


async def status_of(reader: StreamReader) -> int:
    """The next answer's status; its body is read."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(head.split()[1])


@pytest.fixture
def told(loomrl_home: Path, tmp_path: Path) -> Callable[[Story], None]:
    """Runs what one client does on a connection to a server."""
    settings = ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "champion")})

    def tell(story: Story) -> None:
        with Inside(settings) as inside, asyncio.Runner(loop_factory=Clock) as runner:
            runner.run(_connected(story, inside))

    return tell


async def _connected(story: Story, inside: Inside) -> None:
    loop, application = asyncio.get_running_loop(), inside.application
    assert isinstance(loop, Clock)
    kind, state = protocol_of(application, 2**20), ServerState()
    config = uvicorn.Config(application, http=kind, ws="none", lifespan="off", timeout_keep_alive=KEPT)
    config.load()
    theirs, ours = socket.socketpair()  # what is written to one end can be read at the other at once
    await loop.connect_accepted_socket(lambda: kind(config=config, server_state=state, app_state={}), theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    await story(loop, reader, writer)
    writer.close()
    await loop.pass_by(0.0)
    assert not state.connections


async def _ask(reader: StreamReader, writer: StreamWriter, request: bytes) -> None:
    writer.write(request)
    assert await status_of(reader) == 200


def test_a_connection_is_kept_from_its_last_answer_on(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        for request in (DECIDE, DECIDE, LIVE, DECIDE, LIVE, LIVE, DECIDE):
            await _ask(reader, writer, request)
            await clock.pass_by(0.8 * KEPT)
            assert not reader.at_eof()
        await _ask(reader, writer, DECIDE)
        await clock.pass_by(1.1 * KEPT)
        assert await reader.read() == b""

    told(story)


def test_who_sends_slowly_is_waited_for(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        await _ask(reader, writer, DECIDE)
        for part in (DECIDE[:10], DECIDE[10:-5]):
            writer.write(part)
            await clock.pass_by(0.0)
            await clock.pass_by(3 * KEPT)
        await _ask(reader, writer, DECIDE[-5:])

    told(story)


def test_answers_to_what_was_sent_at_once_keep_their_order_and_the_connection(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(DECIDE + DECIDE + LIVE + DECIDE)
        assert [await status_of(reader) for _ in range(4)] == [200] * 4
        await clock.pass_by(0.8 * KEPT)
        await _ask(reader, writer, LIVE)
        await clock.pass_by(1.1 * KEPT)
        assert await reader.read() == b""

    told(story)


def test_a_connection_that_is_lost_leaves_no_timer(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        await _ask(reader, writer, DECIDE)
        assert _timers(clock) == 1
        writer.close()
        await clock.pass_by(0.0)
        assert _timers(clock) == 0

    told(story)


def _timers(clock: Clock) -> int:
    return sum(not timer.cancelled() for timer in clock._scheduled)

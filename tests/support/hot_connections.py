"""One connection to a server in the test's own process, in a loop whose time can be put forward."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import uvicorn
from uvicorn.server import ServerState

from loomrl.serving.api.hot import protocol_of
from loomrl.serving.settings import ServerSettings
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS

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


def on_a_connection(story: Story, champion: Path) -> None:
    """Run what one client does on a connection to a server of this champion."""
    settings = ServerSettings("cartpole", folders={"champion": champion})
    with Inside(settings) as inside, asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(_connected(story, inside))


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

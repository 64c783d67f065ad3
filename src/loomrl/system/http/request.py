"""One request, whole."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from loomrl.system.http.asgi import Receive, Scope, header

_LARGE = 2**20  # bytes; reading more would keep others waiting, so it is done in a thread
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as handlers get it: ASGI scope, whole body, and `receive` for what comes after it."""

    scope: Scope
    body: bytes
    receive: Receive

    @property
    def path(self) -> str:
        """The path of the request's URL, without the query."""
        return str(self.scope["path"])

    def header(self, name: bytes) -> str:
        """The value of a header, as text; empty where the request has none."""
        return header(self.scope, name)

    async def sender_is_gone(self) -> bool:
        """Whether whoever sent it has gone, so that nobody waits for the answer; returns at once."""
        told = asyncio.ensure_future(self.until_sender_is_gone())
        await asyncio.sleep(0)
        if told.done():
            return True
        told.cancel()
        return False

    async def until_sender_is_gone(self) -> None:
        """Return once whoever sent it has gone, so that nobody waits for the answer. The body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def beside(num_bytes: int, work: Callable[[], T], large: int = _LARGE) -> T:
    """What `work` returns or raises; it is done in a thread where it concerns `large` bytes or more, and else here."""
    return work() if num_bytes < large else await asyncio.to_thread(work)

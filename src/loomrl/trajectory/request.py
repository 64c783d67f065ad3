"""One request, whole."""

import asyncio
from dataclasses import dataclass

from loomrl.serving.asgi import Receive, Scope, header


@dataclass(frozen=True, slots=True)
class Request:
    """What handlers get."""

    scope: Scope
    body: bytes
    receive: Receive

    @property
    def path(self) -> str:
        """Without the query."""
        return str(self.scope["path"])

    def header(self, name: bytes) -> str:
        """A header's value, or the empty text."""
        return header(self.scope, name)

    async def sender_is_gone(self) -> bool:
        """Whether whoever sent it waits no longer for the answer."""
        told = asyncio.ensure_future(self.until_sender_is_gone())
        await asyncio.sleep(0)
        if told.done():
            return True
        told.cancel()
        return False

    async def until_sender_is_gone(self) -> None:
        """Return when whoever sent it waits no longer for the answer. The body is read: what else comes is empty."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

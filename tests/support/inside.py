"""A server without a port: its parts in the test's own process, asked through ASGI."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Self

import httpx

from loomrl.serving.api.app import PolicyServer
from loomrl.serving.context import ServerContext
from loomrl.serving.settings import ServerSettings
from loomrl.serving.workers.address import WorkerAddress


class Inside:
    """`with Inside(settings) as server: server.ask("POST", "/decide", {...})`; with `threads` it follows by itself."""

    def __init__(
        self, settings: ServerSettings, threads: bool = False, worker_address: WorkerAddress | None = None
    ) -> None:
        self.context, self._threads = ServerContext(settings, worker_address), threads
        self.application = PolicyServer(self.context)

    def __enter__(self) -> Self:
        if self._threads:
            self.context.start()
            wait_for(lambda: self.context.roles.current.champion is not None)
        else:
            self.context.roles.refresh()
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads:
            self.context.stop()
        else:
            self.context.audit.close()

    def ask(
        self, method: str, path: str, document: Any = None, token: str = "", origin: str | None = None
    ) -> httpx.Response:
        return asyncio.run(self._ask(method, path, document, token, origin))

    def decide(self, agent_id: str, observation: Any) -> httpx.Response:
        return self.ask("POST", "/decide", {"agent_id": agent_id, "observation": observation})

    async def _ask(self, method: str, path: str, document: Any, token: str, origin: str | None) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.application)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {} if origin is None else {"Origin": origin}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, json=document, headers=headers)


def wait_for(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    """Until it is so; minutes, because the machine may be busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)

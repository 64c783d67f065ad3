"""A policy server in a process of its own: started on a free port, ready when the block begins, stopped after it."""

from typing import Any

import httpx

from loomrl.serving.client import PolicyClient
from loomrl.system.http.process import ServiceProcess


class ServerProcess(ServiceProcess):
    """`with ServerProcess("cartpole", champion="3") as server: server.url`.

    Options are those of `loomrl serve`, with underscores. Without `wait_ready` the block begins when the server
    answers, whether or not it has a champion.

    Raises:
        ServiceError: on entering, when the server does not become ready in time; with the end of its log.
    """

    arguments = ("loomrl.serving",)
    name = "policy server"

    def __init__(self, policy: str, *, ready_seconds: float = 300.0, wait_ready: bool = True, **options: Any) -> None:
        super().__init__(ready_seconds=ready_seconds, policy=policy, **options)
        self._path = "/v2/health/ready" if wait_ready else "/v2/health/live"

    def client(self, **options: Any) -> PolicyClient:
        """A new client of this server, with these options of `PolicyClient`; whoever asks for it closes it."""
        return PolicyClient(self.url, **options)

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url + self._path, timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _why_not_ready(self) -> str:
        try:
            answer = httpx.get(f"{self.url}/status", timeout=5, trust_env=False)
            if answer.status_code == 200:  # else it wants a token
                status = answer.json()
                return f"roles {status['roles']}, refused {status['refused']}, registry {status['registry_error']}"
        except httpx.TransportError:
            pass  # it does not answer, or has no URL yet
        return self._end_of_log()

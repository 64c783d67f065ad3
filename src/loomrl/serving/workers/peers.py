"""The other workers of a port, asked over their Unix sockets with requests as they came."""

from http.client import HTTPConnection, HTTPException
from socket import AF_UNIX, socket

import httpx

from loomrl.serving.workers.address import WorkerAddress, socket_folder, socket_path
from loomrl.system.http.asgi import Response, Scope
from loomrl.system.http.problems import Problem
from loomrl.system.http.trust import trusted

ENSURE, ORDERS = "/workers/versions", "/workers/orders"  # routes that workers alone ask
_IDLE_SECONDS = 2.0  # a connection is kept; uvicorn closes those that are idle for 5 s
_NOT_SENT_ON = (
    b"connection",
    b"content-length",
    b"content-encoding",
    b"transfer-encoding",
    b"accept-encoding",
    b"expect",
)
_NOT_SENT_BACK = ("connection", "content-length", "content-type", "transfer-encoding", "date")


class PeerClient:
    """Sends requests to the other workers of this port; but for `tell` used in the event loop alone."""

    def __init__(self, address: WorkerAddress) -> None:
        folder, limits = socket_folder(address.folder), httpx.Limits(keepalive_expiry=_IDLE_SECONDS)
        self._folder = folder
        self._clients = {
            index: httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    uds=socket_path(folder, index), limits=limits, verify=trusted(), trust_env=False
                )
            )
            for index in range(address.count)
            if index != address.index
        }

    async def ask(self, index: int, scope: Scope, body: bytes, timeout_seconds: float) -> Response:
        """A worker's answer to a request. One that is being started again is waited for.

        Raises:
            Problem: 503 where it does not answer in time, or ends before it has.
        """
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        url = httpx.URL(scheme="http", host="worker", raw_path=path)
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_SENT_ON]
        headers.append((b"accept-encoding", b"identity"))
        try:
            answer = await self._clients[index].request(
                scope["method"], url, content=body, headers=headers, timeout=timeout_seconds
            )
        except httpx.TransportError as error:
            raise Problem(
                503, f"worker {index} of this server does not answer: {error!r}; ask again", {"Retry-After": "1"}
            ) from error
        told = {name: value for name, value in answer.headers.items() if name not in _NOT_SENT_BACK}
        return Response(answer.content, answer.status_code, answer.headers["content-type"].encode(), told)

    def tell(self, index: int, path: str, body: bytes, timeout_seconds: float) -> bytes | None:
        """What a worker answers to a POST of JSON; None where it does not in time, or refuses. In any thread: it needs
        no event loop, which may be busy.
        """
        connection = HTTPConnection("localhost", timeout=timeout_seconds)
        try:
            with socket(AF_UNIX) as connection.sock:
                connection.sock.settimeout(timeout_seconds)
                connection.sock.connect(socket_path(self._folder, index))
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                return answer.read() if answer.status < 400 else None
        except (OSError, HTTPException):
            return None


def is_from_peer(scope: Scope) -> bool:
    """Whether another worker asks: its request came by a Unix socket, which only this server's user can open."""
    address = scope.get("server")
    return address is not None and address[1] is None

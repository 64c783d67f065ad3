"""JSON over HTTP to a hub or an engine, with patience."""

import os
import time
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from loomrl.errors import ServiceError
from loomrl.system.http.trust import trusted

CONNECTIONS = 64  # requests under way at once; more would wait in the service
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 5.0  # before asking again; doubles
_MAX_SHOWN = 500  # characters of an answer that an error repeats


class ServiceRefused(ServiceError):
    """The service answered that a request is wrong. `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceConnection:
    """HTTP requests to one service, with retries while it is not reached or busy. Errors are ServiceError, and
    `refused`, a kind of it, where the service answers that a request is wrong.

    Args:
        name: what errors call it, such as `hub`. Its token is that of `LOOMRL_{NAME}_TOKEN` where none is given.
        url: where it is served.
        token: sent as `Authorization: Bearer`.
        patience_seconds: until a request that was not answered fails.
        timeout_seconds: of one answer.
        refused: the class that is raised when the service answers that a request is wrong (status 400 to 499).
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None,
        patience_seconds: float,
        timeout_seconds: float,
        refused: type[ServiceRefused],
    ) -> None:
        token = token or os.environ.get(f"LOOMRL_{name.upper()}_TOKEN")
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_seconds, pool=None),
            limits=httpx.Limits(max_connections=CONNECTIONS),
            trust_env=False,
            verify=trusted(),
        )
        self._name, self._patience_seconds, self._refused = name, patience_seconds, refused

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer, read from JSON; None for an empty one. The request is sent again while the service is not
        reached or fails, so it must be one that may be repeated.

        Raises:
            ServiceRefused: the connection's own kind of it, when the service answers that the request is wrong.
            ServiceError: when there is no answer within `patience_seconds`, or still one of status 500 or above, or one
                that is no JSON.
        """
        deadline, pause = time.monotonic() + self._patience_seconds, _PAUSE_SECONDS
        while True:
            try:
                return self.request_once(method, path, body, headers)
            except ServiceRefused:
                raise
            except ServiceError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def request_once(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer, read from JSON, of a request that is sent once, since it must not be repeated; None for an empty
        one. A `body` in bytes is JSON already, packed as its `headers` say.

        Raises:
            ServiceRefused: the connection's own kind of it, when the service answers that the request is wrong.
            ServiceError: when there is no answer, or one of status 500 or above, or one that is no JSON. Whether the
                service did what was requested is not known then.
        """
        url = f"{self._client.base_url}{path}"
        content = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        headers = {} if content is None else {"Content-Type": "application/json", **(headers or {})}
        try:
            answer = self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ServiceError(f"{method} {url} gave no answer: {reason}; is the {self._name} running?") from error
        told = f"{method} {url}: {answer.status_code} {answer.text[:_MAX_SHOWN]}" if answer.status_code >= 400 else ""
        if answer.status_code >= 500:
            raise ServiceError(f"{told}; see the {self._name}'s log")
        if told:
            raise self._refused(told, answer.status_code)
        try:
            return orjson.loads(answer.content) if answer.content else None
        except ValueError as error:
            raise ServiceError(f"{method} {url}: the answer is no JSON; is this the {self._name}?") from error

    def close(self) -> None:
        """Close all HTTP connections to the service; later requests raise RuntimeError."""
        self._client.close()

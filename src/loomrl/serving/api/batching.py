"""Dynamic batching that waits for nothing: requests whose last bytes were read in the same turn of the event loop are
answered together at its end.

One run of the graph, one record and one write serve all of them, so that a decision costs the less, the more there are.
A request that comes alone is answered alone, at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loomrl.serving.decisions.batches import RequestDecisions
from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.system.http.asgi import Response, Scope

Reply = Callable[[Response], None]


@dataclass(slots=True)
class DecisionRequest:
    """A request for decisions that was read and found well-formed. `answer` makes its response of the decisions,
    `route` is what records call where it came.
    """

    requests: DecisionRequests
    route: str  # as records name it
    started: float  # `time.perf_counter()` at which it was whole
    scope: Scope
    answer: Callable[[list[RequestDecisions]], Response]  # what it says to its decisions


class Batcher:
    """Collects the requests for decisions that arrive in one turn of the event loop."""

    def __init__(self, answer_all: Callable[[Sequence[DecisionRequest]], Sequence[Response]]) -> None:
        self._answer_all = answer_all
        self._waiting: list[tuple[DecisionRequest, Reply]] = []

    def add(self, request: DecisionRequest, reply: Reply) -> None:
        """Have a request answered before the event loop turns again; `reply` is called with its response."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((request, reply))

    def flush(self) -> None:
        """Decide all waiting requests in one batch and pass each its response, in the order they came. With none
        waiting it does nothing.
        """
        waiting, self._waiting = self._waiting, []
        answers = self._answer_all([request for request, _ in waiting]) if waiting else []
        for (_, reply), answer in zip(waiting, answers, strict=True):
            reply(answer)

"""Clients that decide without pause, and hold every answer against the newest version that any of them has seen."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from loomrl.serving.client import Ask, Decision, PolicyClient
from loomrl.serving.process import ServerProcess
from tests.support.policies import OBSERVATIONS
from tests.support.several_workers import connected, pids

_BATCH = 8


class Load:
    """`with Load(server) as load:`; every other request is a batch. Versions must be numbers, newer ones higher.

    Of several workers each gets `num_clients` connections.
    """

    def __init__(self, server: ServerProcess, num_clients: int = 2) -> None:
        self.num_requests = self.num_decisions = 0
        self.newest = 0  # the newest version that decided
        self.failures: list[str] = []  # answers but 200, and decisions by a version older than one seen before
        self._stop, self._lock, self._connections = threading.Event(), threading.Lock(), ExitStack()
        workers = [worker for worker in range(len(pids(server))) for _ in range(num_clients)]
        connections = [self._connections.enter_context(connected(server, worker)) for worker in workers]
        self._clients = [threading.Thread(target=self._decide, args=given) for given in enumerate(connections)]

    def __enter__(self) -> "Load":
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join()
        self._connections.close()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Look every few milliseconds; raises AssertionError on a failure of the load, or when time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            assert time.monotonic() < deadline, f"did not happen in {seconds:g} s"
            time.sleep(0.002)
        self.check()

    def check(self) -> None:
        """Raise AssertionError when anything was wrong so far."""
        assert not self.failures, self.failures[0]

    def _decide(self, number: int, client: PolicyClient) -> None:
        asks = [Ask(f"agent-{number}", observation) for observation in OBSERVATIONS[:_BATCH]]
        while not self._stop.is_set():
            newest = self.newest  # before the request: what answers it must not be older
            try:
                self._take(self._request(client, asks), newest)
            except Exception as error:  # noqa: BLE001 - whatever it is: a client that ends silently would look like peace
                self.failures.append(repr(error))
                return

    def _request(self, client: PolicyClient, asks: list[Ask]) -> list[Decision]:
        if self.num_requests % 2:
            return client.decide_many(asks)
        return [client.decide(asks[0].agent_id, asks[0].observation)]

    def _take(self, decisions: list[Decision], newest: int) -> None:
        versions = {int(decision.version) for decision in decisions}
        if len(versions) != 1 or min(versions) < newest:
            self.failures.append(f"decided by {sorted(versions)} after version {newest} had decided")
        with self._lock:
            self.num_requests += 1
            self.num_decisions += len(decisions)
            self.newest = max(self.newest, *versions)

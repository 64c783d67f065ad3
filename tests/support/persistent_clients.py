"""Clients that send each request until it is acknowledged, to whichever server is up, and note what they were told."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loomrl.errors import ServiceError
from loomrl.serving.client import Ask, Decision, Outcome, PolicyClient, Refused
from tests.support.policies import OBSERVATIONS

# A client's requests, in turn: how many decisions each asks for, and whether it bears ids. One of one is no batch.
_REQUESTS = ((1, True), (64, True), (1, False), (64, True), (7, False))
_REWARDED = 4  # of the decisions of a request, at most
_STUCK_SECONDS = 120.0

T = TypeVar("T")


@dataclass
class Told:
    """What clients were told."""

    decisions: dict[str, tuple[str, Any]] = field(default_factory=dict)  # request id -> decision id and action
    unnamed: dict[str, Any] = field(default_factory=dict)  # decision id -> action, of requests without an id
    rewards: dict[str, float] = field(default_factory=dict)  # decision id -> reward that was acknowledged

    @property
    def num_decisions(self) -> int:
        """All that were acknowledged."""
        return len(self.decisions) + len(self.unnamed)

    def take(self, asks: list[Ask], decisions: list[Decision]) -> None:
        """Note the answers to a request."""
        for ask, one in zip(asks, decisions, strict=True):
            if ask.request_id is None:
                self.unnamed[one.decision_id] = one.action
            else:
                self.decisions[ask.request_id] = one.decision_id, one.action


class Clients:
    """`with Clients() as clients:`; they ask once `go_on` names a server, and wait while there is none."""

    def __init__(self, num_clients: int = 4) -> None:
        self.told = Told()
        self._url, self._may_ask = "", threading.Event()
        self._stop, self._give_up = threading.Event(), threading.Event()
        self._failures: list[str] = []
        self._clients = [_Client(f"client-{number}", self) for number in range(num_clients)]
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in self._clients]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._give_up.set()  # where something went wrong there may be no server, and no other comes
        self._may_ask.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, url: str) -> None:
        """Ask this server."""
        self._url = url
        self._may_ask.set()

    def pause(self) -> None:
        """There is no server: send nothing until `go_on`."""
        self._may_ask.clear()

    def finish(self) -> None:
        """End once everything that was sent is acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_STUCK_SECONDS)
            assert not thread.is_alive(), "a client gets no answer"
        self._check()

    def wait_for(self, num_decisions: int) -> None:
        """Until so many decisions are acknowledged, or a request is under way where they are already."""
        deadline = time.monotonic() + _STUCK_SECONDS
        num_before = self.told.num_decisions
        while self.told.num_decisions < max(num_decisions, num_before + 1):
            self._check()
            assert time.monotonic() < deadline, f"only {self.told.num_decisions} decisions after {_STUCK_SECONDS:g} s"
            time.sleep(0.002)

    def _check(self) -> None:
        assert not self._failures, self._failures[0]

    def _run(self, client: "_Client") -> None:
        try:
            client.work()
        except Exception as error:  # noqa: BLE001 - whatever it is: a client that ends silently would look like peace
            self._failures.append(repr(error))
        finally:
            client.close()

    def send(self, client: "_Client", request: Callable[[PolicyClient], T]) -> T:
        """What the server that is up answers; attempts whose answer was lost are made again."""
        while True:
            self._may_ask.wait()
            try:
                return request(client.connected(self._url))
            except Refused:
                raise
            except ServiceError:  # the server is gone, and nobody knows whether it did what was asked
                if self._give_up.is_set():
                    raise
                client.num_lost += 1
                time.sleep(0.005)

    @property
    def num_lost(self) -> int:
        """Requests that were sent again, because nobody knows whether they were answered."""
        return sum(client.num_lost for client in self._clients)

    @property
    def is_ending(self) -> bool:
        """Whether no more is to be asked."""
        return self._stop.is_set()


class _Client:
    """One thread's requests."""

    def __init__(self, name: str, clients: Clients) -> None:
        self._name, self._clients = name, clients
        self._connection: PolicyClient | None = None
        self.num_lost = 0  # answers

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def connected(self, url: str) -> PolicyClient:
        """A connection to this server."""
        if self._connection is None or self._connection.url != url:
            self.close()
            self._connection = PolicyClient(url)
        return self._connection

    def work(self) -> None:
        """Ask and reward in turn. Where an answer was lost, the named request before that is sent again, too."""
        former: list[Ask] = []
        answers: list[Decision] = []
        for number, (size, is_named) in enumerate(itertools.cycle(_REQUESTS)):
            if self._clients.is_ending:
                return
            asks, num_lost = [self._ask(number, row, is_named) for row in range(size)], self.num_lost
            decisions = self._decide(asks)
            if former and self.num_lost > num_lost:
                again = self._decide(former)
                assert again == answers, f"asked again, {again} instead of {answers}"
            if is_named:
                former, answers = asks, decisions
            self._clients.told.take(asks, decisions)
            self._reward([Outcome(one.decision_id, number + row / 64) for row, one in enumerate(decisions[:_REWARDED])])

    def _ask(self, number: int, row: int, is_named: bool) -> Ask:
        observation, name = OBSERVATIONS[row % len(OBSERVATIONS)], f"{self._name}/{number}.{row}"
        return Ask(f"{self._name}-{row}", observation, explore=row % 2 == 0, request_id=name if is_named else None)

    def _decide(self, asks: list[Ask]) -> list[Decision]:
        if len(asks) > 1:
            return self._clients.send(self, lambda client: client.decide_many(asks))
        (ask,) = asks
        single = ask.agent_id, ask.observation, ask.episode_id, ask.explore, ask.request_id
        return [self._clients.send(self, lambda client: client.decide(*single))]

    def _reward(self, outcomes: list[Outcome]) -> None:
        """Whoever sends rewards again, because the answer was lost, may hear that the first of them are known."""
        num_lost = self.num_lost
        try:
            self._clients.send(self, lambda client: client.feedback_many(outcomes))
        except Refused as refused:
            if refused.status != 409 or self.num_lost == num_lost:
                raise
            for outcome in outcomes:
                self._reward_again(outcome)
        self._clients.told.rewards.update((one.decision_id, one.reward) for one in outcomes)

    def _reward_again(self, outcome: Outcome) -> None:
        try:
            self._clients.send(self, lambda client: client.feedback_many([outcome]))
        except Refused as refused:
            if refused.status != 409:
                raise

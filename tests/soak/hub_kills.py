"""A hub killed with -9 again and again under load: every acknowledged group is delivered, and none as two.

Environments post groups and send one again, as it was, until it is answered. A trainer takes batches with a lease and
acknowledges them until that is answered; a batch that comes again has the number it had.
"""

import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from atropos import registration

from loomrl.trajectory.process import HubProcess

NUM_KILLS, NUM_ENVIRONMENTS, BATCH_SIZE, GROUP_SIZE = 100, 4, 8, 2
_LEASE_SECONDS = 5


def run(folder: Path, num_kills: int = NUM_KILLS, seconds_between_kills: float = 2.0) -> dict[str, Any]:
    """Kill and start again; then take all that waits.

    Raises:
        AssertionError: when an acknowledged group was lost, or one was in two batches.
    """
    rng = random.Random(0)
    with HubProcess(database_url=f"sqlite:///{folder / 'hub.db'}") as hub:
        _ask(hub, "POST", "/register", json=registration(BATCH_SIZE))
        load = _Load(hub)
        for _ in range(num_kills):
            time.sleep(rng.uniform(0.5, 1.5) * seconds_between_kills)
            hub.kill()
            hub.start()
        load.stop()
    delivered = [mark for batch in load.batches.values() for mark in batch]
    waiting = load.acknowledged - set(delivered)
    assert len(delivered) == len(set(delivered)), "a group was in two batches"
    assert len(waiting) < BATCH_SIZE // GROUP_SIZE, f"{len(waiting)} groups were lost"
    assert load.num_left == len(waiting), f"{len(waiting)} groups were not delivered, {load.num_left} wait"
    assert not load.failures, load.failures[:3]
    return {
        "num_kills": num_kills,
        "num_acknowledged": len(load.acknowledged),
        "num_batches": len(load.batches),
        "num_posts_sent_again": load.num_repeated,
        "num_batches_delivered_again": load.num_redelivered,
        "num_lost": 0,
        "num_delivered_as_two": 0,
    }


class _Load:
    """Environments and a trainer, each a thread."""

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self.acknowledged: set[int] = set()
        self.batches: dict[int, list[int]] = {}  # marks of groups, by batch
        self.failures: list[str] = []
        self.num_repeated = self.num_redelivered = self.num_left = 0
        self._stopped = threading.Event()
        self._environments = [threading.Thread(target=self._post, args=(number,)) for number in range(NUM_ENVIRONMENTS)]
        self._trainer = threading.Thread(target=self._take)
        for thread in (*self._environments, self._trainer):
            thread.start()

    def stop(self) -> None:
        """Every post is answered, every batch taken."""
        self._stopped.set()
        for thread in (*self._environments, self._trainer):
            thread.join()
        self.num_left = _ask(self._hub, "GET", "/status").json()["queue_size"]

    def _post(self, number: int) -> None:
        mark = number
        while not self._stopped.is_set():
            body = {"tokens": [[mark]] * GROUP_SIZE, "masks": [[mark]] * GROUP_SIZE, "scores": [0.0] * GROUP_SIZE}
            answer, num_tries = _until_answered(self._hub, "POST", "/scored_data", json=body)
            if answer.json() != {"status": "received"}:
                self.failures.append(answer.text)
                return
            self.num_repeated += num_tries > 1
            self.acknowledged.add(mark)
            mark += NUM_ENVIRONMENTS

    def _take(self) -> None:
        while True:
            is_last = self._stopped.is_set() and not any(thread.is_alive() for thread in self._environments)
            answer, _ = _until_answered(self._hub, "GET", f"/batch?lease={_LEASE_SECONDS}")
            found = answer.json()
            if found["batch"] is None:
                if is_last and not self._is_leased():
                    return
                time.sleep(0.01)
                continue
            marks = [group["tokens"][0][0] for group in found["batch"]]
            if found["batch_id"] in self.batches:
                self.num_redelivered += 1
                if self.batches[found["batch_id"]] != marks:
                    self.failures.append(
                        f"batch {found['batch_id']} had {self.batches[found['batch_id']]}, now {marks}"
                    )
            self.batches[found["batch_id"]] = marks
            _until_answered(self._hub, "POST", f"/batch/{found['batch_id']}/ack")

    def _is_leased(self) -> bool:
        """Whether a batch waits for its lease to run out: its answer went down with the hub."""
        waiting = _ask(self._hub, "GET", "/hub").json()["queues"]
        return bool(waiting["leased_batches"] or waiting["formed_batches"])


def _ask(hub: HubProcess, method: str, path: str, **content: Any) -> httpx.Response:
    return httpx.request(method, hub.url + path, trust_env=False, timeout=30, **content)


def _until_answered(hub: HubProcess, method: str, path: str, **content: Any) -> tuple[httpx.Response, int]:
    """The answer, and how often it took to ask."""
    for number in range(1, 10_000):
        try:
            answer = _ask(hub, method, path, **content)
            if answer.status_code == 200:
                return answer, number
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"{path} was never answered")

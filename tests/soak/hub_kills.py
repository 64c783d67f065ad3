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

from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import registration

NUM_KILLS, NUM_ENVIRONMENTS, BATCH_SIZE, GROUP_SIZE = 100, 4, 8, 2
_LEASE_SECONDS = 2


def run(folder: Path, num_kills: int = NUM_KILLS, seconds_between_kills: float = 2.0) -> dict[str, Any]:
    """Kill and start again; then take all that waits.

    Raises:
        AssertionError: when an acknowledged group was lost, or one was in two batches.
    """
    rng = random.Random(0)
    with HubProcess(database_url=f"sqlite:///{folder / 'hub.db'}") as hub:
        with _Client(hub) as client:
            client.until_answered("POST", "/register", json=registration(BATCH_SIZE))
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
        with _Client(self._hub) as client:
            self.num_left = client.until_answered("GET", "/status")[0].json()["queue_size"]

    def _post(self, mark: int) -> None:
        with _Client(self._hub) as client:
            while not self._stopped.is_set():
                row = [[mark]] * GROUP_SIZE
                body = {"tokens": row, "masks": row, "scores": [0.0] * GROUP_SIZE}
                answer, num_tries = client.until_answered("POST", "/scored_data", json=body)
                if answer.json() != {"status": "received"}:
                    self.failures.append(answer.text)
                self.num_repeated += num_tries > 1
                self.acknowledged.add(mark)
                mark += NUM_ENVIRONMENTS

    def _take(self) -> None:
        with _Client(self._hub) as client:
            while True:
                is_last = self._stopped.is_set() and not any(thread.is_alive() for thread in self._environments)
                found = client.until_answered("GET", f"/batch?lease={_LEASE_SECONDS}")[0].json()
                if found["batch"] is not None:
                    self._keep(found["batch_id"], [group["tokens"][0][0] for group in found["batch"]])
                    client.until_answered("POST", f"/batch/{found['batch_id']}/ack")
                elif is_last and not _is_leased(client):
                    return
                else:
                    time.sleep(0.01)

    def _keep(self, batch_id: int, marks: list[int]) -> None:
        known = self.batches.setdefault(batch_id, marks)
        self.num_redelivered += known is not marks
        if known != marks:
            self.failures.append(f"batch {batch_id} had {known}, now {marks}")


class _Client:
    """Asks until it is answered, whatever happens to the hub."""

    def __init__(self, hub: HubProcess) -> None:
        self._client = httpx.Client(base_url=hub.url, trust_env=False, timeout=30)

    def until_answered(self, method: str, path: str, **content: Any) -> tuple[httpx.Response, int]:
        """The answer, and how often it took to ask."""
        deadline, num_tries = time.monotonic() + 120, 0
        while time.monotonic() < deadline:
            num_tries += 1
            try:
                answer = self._client.request(method, path, **content)
                if answer.status_code == 200:
                    return answer, num_tries
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(f"{path} was never answered")

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *failure: object) -> None:
        self._client.close()


def _is_leased(client: _Client) -> bool:
    """Whether a batch waits for its lease to run out: its answer went down with the hub."""
    waiting = client.until_answered("GET", "/hub")[0].json()["queues"]
    return bool(waiting["leased_batches"] or waiting["formed_batches"])

"""The same requests to the reference and to a hub: the same answers, where the reference is not defective."""

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.atropos import environment, group, registration

NUM_SEQUENCES, NUM_OPERATIONS = 25, 60


class Sequence:
    """Random operations as several environments and a trainer would send them, in an order that is often odd.

    Left out is what the reference fails at: numbers that are not finite, groups before the registration or larger than
    a batch, batches after a reset, the status of environments that do not exist or while none is connected.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._batch_size = rng.choice([4, 8, 16])
        self._mark = 0
        self._connected: list[bool] = []
        self._started = self._registered = False

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        for _ in range(NUM_OPERATIONS):
            yield self._next()

    def _next(self) -> tuple[str, str, Any]:
        if not self._registered:
            return self._before_registration()
        kinds = {self._post: 8, self._post_list: 3, self._batch: 5, self._register_environment: 2, self._look: 2}
        kinds |= {self._disconnect: 0.5, self._bad: 1}
        if any(self._connected):
            kinds[self._environment_status] = 4
        return self._rng.choices(list(kinds), list(kinds.values()))[0]()

    def _before_registration(self) -> tuple[str, str, Any]:
        if self._rng.random() < 0.3:
            return self._rng.choice([("GET", path, None) for path in ("/", "/status", "/wandb_info", "/nothing")])
        self._registered = True
        return "POST", "/register", registration(self._batch_size, starting_step=self._rng.randint(0, 9))

    def _look(self) -> tuple[str, str, Any]:
        path = self._rng.choice(["/info", "/wandb_info", "/status", "/latest_example", "/register"])
        return "GET", path, None

    def _batch(self) -> tuple[str, str, Any]:
        self._started = True
        return "GET", "/batch", None

    def _register_environment(self) -> tuple[str, str, Any]:
        if self._started:
            self._connected.append(True)
        minimum = self._rng.choice([None, None, None, 0.0, 0.25, 0.5])
        body = environment(
            self._rng.choice([1, 2, 4]), weight=self._rng.choice([0.5, 1, 2]), desired_name=self._rng.choice("ab")
        )
        return "POST", "/register-env", body if minimum is None else {**body, "min_batch_allocation": minimum}

    def _disconnect(self) -> tuple[str, str, Any]:
        env_id = self._rng.randint(0, len(self._connected))
        if sum(self._connected) > 1 and env_id < len(self._connected):
            self._connected[env_id] = False
            return "POST", "/disconnect-env", {"env_id": env_id}
        return "POST", "/disconnect-env", {}

    def _environment_status(self) -> tuple[str, str, Any]:
        return "GET", "/status-env", {"env_id": self._rng.randrange(len(self._connected))}

    def _post(self) -> tuple[str, str, Any]:
        return "POST", "/scored_data", self._group()

    def _post_list(self) -> tuple[str, str, Any]:
        return "POST", "/scored_data_list", [self._group() for _ in range(self._rng.randint(0, 4))]

    def _bad(self) -> tuple[str, str, Any]:
        body: dict[str, Any] = self._group()
        kind = self._rng.randrange(5)
        if kind == 0:
            del body[self._rng.choice(["tokens", "masks", "scores"])]
        elif kind == 1:
            body[self._rng.choice(["tokens", "masks"])] = self._rng.choice([None, 5, ["a"], [["x"]], {}])
        elif kind == 2:
            body["messages"] = [[{"role": "user"}]]
        elif kind == 3:
            body["generation_params"] = self._rng.choice([[1], "text", 3])
        else:
            return "POST", "/scored_data_list", body
        return "POST", "/scored_data", body

    def _group(self) -> dict[str, Any]:
        self._mark += 1
        sizes = [size for size in (1, 2, 2, 3, 4, 4, 4, 8) if size <= self._batch_size]
        env_id = self._rng.choice([None, *range(len(self._connected) + 1)])
        others: dict[str, Any] = {} if env_id is None else {"env_id": env_id}
        if self._rng.random() < 0.2:
            others |= {"messages": [[{"role": "user", "content": "text", "more": [1, None]}]], "images": {"a": 1}}
        if self._rng.random() < 0.2:
            others |= {"generation_params": {"temperature": 0.5}, "advantages": None, "unknown": 1}
        return group(self._rng.choice(sizes), self._mark, **others)


def answer(client: httpx.Client, method: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and content, without what is drawn at random; of errors the fields they name."""
    response = client.request(method, path, json=body) if body is not None else client.request(method, path)
    content = response.json()
    if path == "/register" and response.status_code == 200:
        assert isinstance(content.pop("uuid"), int)
    if response.status_code != 200:
        assert content.keys() == {"detail"}
        fields = {tuple(one["loc"][:2]) for one in content["detail"]} if response.status_code == 422 else None
        return response.status_code, fields
    return response.status_code, content


@pytest.mark.parametrize("seed", range(NUM_SEQUENCES))
def test_random_operations_have_the_answers_of_the_reference(hub: httpx.Client, reference_url: str, seed: int) -> None:
    with httpx.Client(base_url=reference_url, trust_env=False, timeout=30) as reference:
        reference.get("/reset_data")
        for number, operation in enumerate(Sequence(random.Random(seed))):
            expected = answer(reference, *operation)
            assert answer(hub, *operation) == expected, (number, operation)

"""The hub's API is fuzzed as `fuzzed_api` has it, an hour with tokens and an hour without."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from loomrl.system.http.tokens import DECIDE, OBSERVE, OPERATE
from tests.soak.fuzzed_api import NUM_EXAMPLES, SECONDS, Target, fuzzed
from tests.support.atropos import group


class _Hub:
    """A hub."""

    operator_may, reads_strictly = frozenset((OBSERVE, DECIDE)), False

    def __init__(self, hub: HubProcess, operator: httpx.Client, trainer: HubClient, environment: HubClient) -> None:
        self._operator, self._trainer, self._environment = operator, trainer, environment
        self.url, self.log = hub.url, hub.log

    def settle(self) -> None:
        """As the protocol has it."""
        self._operator.get("/reset_data").raise_for_status()

    def look(self) -> object:
        """As the protocol has it: a group that is posted is taken whole."""
        self.settle()
        self._trainer.register(batch_size=2, max_token_len=64, num_steps=10)
        self._environment.post(group(2))
        batch = self._trainer.next_batch()
        self.settle()
        return None if batch is None else batch.groups


@contextmanager
def _started(folder: Path, tokens: Mapping[str, str], environment: dict[str, str]) -> Iterator[Target]:
    folder.mkdir(parents=True, exist_ok=True)
    hub = HubProcess(database_url=f"sqlite:///{folder / 'hub.db'}", environment=environment)
    token = tokens.get(OPERATE, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with (
        hub,
        httpx.Client(base_url=hub.url, headers=headers, trust_env=False, timeout=60) as operator,
        HubClient(hub.url, token=token) as trainer,
        HubClient(hub.url, token=tokens.get(DECIDE, "")) as taking_part,
    ):
        yield _Hub(hub, operator, trainer, taking_part)


def run(folder: Path, seconds: float = SECONDS, num_examples: int = NUM_EXAMPLES) -> dict[str, Any]:
    """Fuzz a hub.

    Raises:
        AssertionError: as `fuzzed` does.
    """
    return fuzzed(_started, folder, seconds, num_examples)

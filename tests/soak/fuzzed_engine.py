"""The API of a served engine is fuzzed as `fuzzed_api` has it, an hour with tokens and an hour without."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loomrl.language.inference.process import EngineProcess
from loomrl.system.http.tokens import DECIDE, OBSERVE, OPERATE
from tests.soak.fuzzed_api import NUM_EXAMPLES, SECONDS, Target, fuzzed
from tests.support.fuzzing import kept_going
from tests.support.language_policies import language_policy

_MAX_WAITING = 256  # completions: what asks for more is refused, and not waited for


class _Engine:
    """A served engine."""

    operator_may, reads_strictly = frozenset((OBSERVE, DECIDE)), False

    def __init__(self, engine: EngineProcess, operator: httpx.Client) -> None:
        self._operator = operator
        self.url, self.log = engine.url, engine.log

    def settle(self) -> None:
        """As the protocol has it."""
        self._operator.post("/resume").raise_for_status()

    def look(self) -> object:
        """As the protocol has it: the likeliest tokens, which no weights but these make."""
        self.settle()
        asked = {"text": "1+2=", "sampling_params": {"max_new_tokens": 8, "temperature": 0.0}}
        return self._operator.post("/generate", json=asked).raise_for_status().json()["output_ids"]


@contextmanager
def _started(folder: Path, tokens: Mapping[str, str], environment: dict[str, str]) -> Iterator[Target]:
    language_policy(0).save(folder / "policy")
    engine = EngineProcess(policy=folder / "policy", max_waiting=_MAX_WAITING, environment=environment)
    token = tokens.get(OPERATE, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with (
        engine,
        httpx.Client(base_url=engine.url, headers=headers, trust_env=False, timeout=60) as client,
        kept_going(engine.url, token),
    ):
        yield _Engine(engine, client)


def run(folder: Path, seconds: float = SECONDS, num_examples: int = NUM_EXAMPLES) -> dict[str, Any]:
    """Fuzz an engine.

    Raises:
        AssertionError: as `fuzzed` does.
    """
    return fuzzed(_started, folder, seconds, num_examples)

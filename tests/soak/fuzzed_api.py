"""The API is fuzzed from its description, an hour with tokens and an hour without: no 5xx but 503, no answer that is
not described, and none to who lacks the right that the route names. Here the policy server's; `fuzzed_hub` and
`fuzzed_engine` do the same to the others."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
from tqdm import tqdm
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.serving.client import PolicyClient
from loomrl.serving.process import ServerProcess
from loomrl.system.http.tokens import DECIDE, OBSERVE, OPERATE, ROLES, TOKENS, TOKENS_FILE, add
from tests.support.fuzzing import clear_controls, fuzz, num_accepted
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder

SECONDS = 3_600.0
NUM_EXAMPLES = 100
NOBODY, OPEN, ANY = "nobody", "open", "any"  # who shows no token, routes that want none, and that want whichever


class Target(Protocol):
    """What is fuzzed."""

    operator_may: frozenset[str]  # roles besides its own that an operator's token has
    reads_strictly: bool

    @property
    def url(self) -> str:
        """Where it answers."""

    def log(self) -> str:
        """What it wrote so far."""

    def settle(self) -> None:
        """Undo whatever operators did."""

    def look(self) -> object:
        """What it says to who takes part: the same before and afterwards."""


Start = Callable[[Path, Mapping[str, str], dict[str, str]], AbstractContextManager[Target]]


class _Server:
    """A policy server."""

    operator_may, reads_strictly = frozenset((OBSERVE,)), True

    def __init__(self, server: ServerProcess, operator: PolicyClient, agent: PolicyClient) -> None:
        self._operator, self._agent = operator, agent
        self.url, self.log = server.url, server.log

    def settle(self) -> None:
        """As the protocol has it."""
        clear_controls(self._operator, "cartpole")

    def look(self) -> object:
        """As the protocol has it."""
        decided = self._agent.decide("a", OBSERVATIONS[0])
        return decided.role, decided.action, decided.value


@contextmanager
def _started(folder: Path, tokens: Mapping[str, str], environment: dict[str, str]) -> Iterator[Target]:
    server = ServerProcess(
        "cartpole",
        champion_folder=discrete_folder(folder / "champion"),
        challenger_folder=discrete_folder(folder / "challenger", -BALANCING),
        rate=1e6,
        environment=environment,
    )
    with (
        server,
        server.client(token=tokens.get(OPERATE, "")) as operator,
        server.client(token=tokens.get(DECIDE, "")) as agent,
    ):
        yield _Server(server, operator, agent)


def run(folder: Path, seconds: float = SECONDS, num_examples: int = NUM_EXAMPLES) -> dict[str, Any]:
    """Fuzz a policy server.

    Raises:
        AssertionError: as `fuzzed` does, and when its audit log does not hold.
    """
    found = fuzzed(_started, folder, seconds, num_examples)
    verified = CliRunner().invoke(audit_app, ["verify"])
    assert verified.exit_code == 0, verified.output
    return found


def fuzzed(start: Start, folder: Path, seconds: float, num_examples: int) -> dict[str, Any]:
    """Fuzz a target with tokens, as nobody and with a token of each role in turn, then one without tokens, each for at
    least so long.

    Raises:
        AssertionError: when an answer is not described or was given to who may not have it, the log has a traceback, or
            the target does not answer as before afterwards.
    """
    made = {role: add(folder / "tokens", role, [role]) for role in ROLES}
    return {
        "with_tokens": _fuzzed(start, folder / "with", made, folder / "tokens", seconds, num_examples),
        "without_tokens": _fuzzed(start, folder / "without", {}, None, seconds, num_examples),
    }


def _fuzzed(
    start: Start, folder: Path, tokens: Mapping[str, str], file: Path | None, seconds: float, num_examples: int
) -> dict[str, Any]:
    environment = {TOKENS_FILE: "" if file is None else str(file), TOKENS: "", "LOOMRL_OPERATOR_TOKEN": ""}
    counts, by_identity = Counter[str](), Counter[str]()
    bar = tqdm(total=int(seconds), unit="s", desc=f"fuzzing {folder.name} tokens")
    with bar, start(folder, tokens, environment) as target:
        before, wanted = target.look(), _wanted(target)
        shown = {NOBODY: "", **tokens}
        begun, identities = time.monotonic(), itertools.cycle(shown.items())
        for seed in itertools.count():
            identity, token = next(identities)
            report = fuzz(
                target.url, folder / f"{seed}", num_examples, token, seed, reads_strictly=target.reads_strictly
            )
            accepted = num_accepted(report)
            assert accepted.keys() <= wanted.keys(), accepted.keys() - wanted.keys()
            for operation, role in wanted.items():
                may = file is None or _may(identity, role, target)
                assert may or not accepted.get(operation, 0), (identity, operation, seed)
            by_identity[identity] += sum(accepted.values())
            counts.update(
                num_requests=report["test_cases"]["generated"],
                num_failures=report["test_cases"]["with_failures"],
                num_seeds=1,
            )
            target.settle()
            elapsed = time.monotonic() - begun
            bar.update(int(elapsed) - bar.n)
            if elapsed >= seconds and seed + 1 >= len(shown):
                break
        assert target.look() == before
        assert "Traceback" not in target.log()
    return {**counts, "num_operations": len(wanted), "num_accepted": dict(by_identity), "seconds": round(elapsed)}


def _wanted(target: Target) -> dict[str, str]:
    """Operation -> the role that its description names."""
    document = httpx.get(f"{target.url}/openapi.json", trust_env=False).json()
    return {
        f"{method.upper()} {path}": _role_of(told) for path, methods in document["paths"].items()
        for method, told in methods.items()
    }  # fmt: skip


def _role_of(operation: Mapping[str, Any]) -> str:
    if "security" not in operation:
        return OPEN
    return next((role for one in operation["security"] for roles in one.values() for role in roles), ANY)


def _may(identity: str, role: str, target: Target) -> bool:
    if role in (OPEN, identity) or (role == ANY and identity != NOBODY):
        return True
    return identity == OPERATE and role in target.operator_may

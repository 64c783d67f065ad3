"""The API is fuzzed from its description, an hour with tokens and an hour without: no 5xx but 503, no answer that is
not described, and none to who lacks the right that the route names."""

import itertools
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from fuzzing import clear_controls, fuzz, num_accepted
from policies import BALANCING, OBSERVATIONS, discrete_folder
from tqdm import tqdm
from typer.testing import CliRunner

from loomrl.serving.audit_commands import audit_app
from loomrl.serving.process import ServerProcess
from loomrl.serving.tokens import DECIDE, OBSERVE, OPERATE, ROLES, TOKENS_FILE, add

SECONDS = 3_600.0
NUM_EXAMPLES = 100
NOBODY, OPEN = "nobody", "open"  # who shows no token, and routes that want none


def run(folder: Path, seconds: float = SECONDS, num_examples: int = NUM_EXAMPLES) -> dict[str, Any]:
    """Fuzz a server with tokens, as nobody and with a token of each role in turn, then one without tokens, each for at
    least so long.

    Raises:
        AssertionError: when an answer is not described or was given to who may not have it, the log has a traceback,
            the server does not decide as before afterwards, or its audit log does not hold.
    """
    made = {role: add(folder / "tokens", role, [role]) for role in ROLES}
    found = {
        "with_tokens": _fuzzed(folder / "with", {NOBODY: "", **made}, folder / "tokens", seconds, num_examples),
        "without_tokens": _fuzzed(folder / "without", {NOBODY: ""}, None, seconds, num_examples),
    }
    verified = CliRunner().invoke(audit_app, ["verify"])
    assert verified.exit_code == 0, verified.output
    return found


def _fuzzed(folder: Path, tokens: Mapping[str, str], file: Path | None, seconds: float, num_examples: int) -> Any:
    server = ServerProcess(
        "cartpole",
        champion_folder=discrete_folder(folder / "champion"),
        challenger_folder=discrete_folder(folder / "challenger", -BALANCING),
        rate=1e6,
        environment={TOKENS_FILE: "" if file is None else str(file), "LOOMRL_OPERATOR_TOKEN": ""},
    )
    agent, operator = tokens.get(DECIDE, ""), tokens.get(OPERATE, "")
    counts, by_identity = Counter[str](), Counter[str]()
    bar = tqdm(total=int(seconds), unit="s", desc=f"fuzzing {folder.name} tokens")
    with bar, server, server.client(token=operator) as client, server.client(token=agent) as deciding:
        before = deciding.decide("a", OBSERVATIONS[0])
        wanted = _wanted(server)
        begun, identities = time.monotonic(), itertools.cycle(tokens.items())
        for seed in itertools.count():
            identity, token = next(identities)
            report = fuzz(server, folder / f"{seed}", num_examples, token, seed)
            accepted = num_accepted(report)
            assert accepted.keys() <= wanted.keys(), accepted.keys() - wanted.keys()
            for operation, role in wanted.items():
                assert file is None or _may(identity, role) or not accepted.get(operation, 0), (
                    identity,
                    operation,
                    seed,
                )
            by_identity[identity] += sum(accepted.values())
            counts += Counter(
                num_requests=report["test_cases"]["generated"],
                num_failures=report["test_cases"]["with_failures"],
                num_seeds=1,
            )
            clear_controls(client, "cartpole")
            elapsed = time.monotonic() - begun
            bar.update(int(elapsed) - bar.n)
            if elapsed >= seconds and seed + 1 >= len(tokens):
                break
        after = deciding.decide("a", OBSERVATIONS[0])
        assert (after.role, after.action, after.value) == (before.role, before.action, before.value)
        assert "Traceback" not in server.log()
    return {**counts, "num_operations": len(wanted), "num_accepted": dict(by_identity), "seconds": round(elapsed)}


def _wanted(server: ServerProcess) -> dict[str, str]:
    """Operation -> the role that its description names."""
    document = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    return {
        f"{method.upper()} {path}": next(
            (role for one in told.get("security", []) for roles in one.values() for role in roles), OPEN
        )
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    }


def _may(identity: str, role: str) -> bool:
    return role in (OPEN, identity) or (role == OBSERVE and identity == OPERATE)

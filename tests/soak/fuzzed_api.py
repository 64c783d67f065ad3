"""The API is fuzzed from its description, seed after seed: no 5xx but 503, and no answer that is not described."""

from pathlib import Path
from typing import Any

from fuzzing import clear_controls, fuzz, num_accepted
from policies import BALANCING, OBSERVATIONS, discrete_folder
from typer.testing import CliRunner

from loomrl.serving.audit_commands import audit_app
from loomrl.serving.process import ServerProcess

NUM_SEEDS = 5
NUM_EXAMPLES = 300
TOKEN = "correct horse"


def run(folder: Path, num_seeds: int = NUM_SEEDS, num_examples: int = NUM_EXAMPLES) -> dict[str, Any]:
    """Fuzz one server with each of the seeds; it syncs before every answer, and only its operators may operate.

    Raises:
        AssertionError: when an answer is not described, the log has a traceback, the server does not decide as before
            afterwards, or its audit log does not hold.
    """
    server = ServerProcess(
        "cartpole",
        champion_folder=discrete_folder(folder / "champion"),
        challenger_folder=discrete_folder(folder / "challenger", -BALANCING),
        rate=1e6,
        durability="strict",
        environment={"LOOMRL_OPERATOR_TOKEN": TOKEN},
    )
    with server, server.client(token=TOKEN) as client:
        before = client.decide("a", OBSERVATIONS[0])
        reports = [fuzz(server, folder / f"{seed}", num_examples, TOKEN, seed) for seed in range(num_seeds)]
        clear_controls(client, "cartpole")
        after = client.decide("a", OBSERVATIONS[0])
        assert "Traceback" not in server.log()
    assert (after.role, after.action, after.value) == (before.role, before.action, before.value)
    verified = CliRunner().invoke(audit_app, ["verify"])
    assert verified.exit_code == 0, verified.output
    return {
        "num_requests": sum(report["test_cases"]["generated"] for report in reports),
        "num_accepted": sum(sum(num_accepted(report).values()) for report in reports),
        "num_operations": reports[0]["operations"]["tested"],
        "num_failures": sum(report["test_cases"]["with_failures"] for report in reports),
        "seeds": list(range(num_seeds)),
    }

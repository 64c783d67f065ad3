"""The API is fuzzed from its own description: every answer is one that it allows, and none is a 5xx but 503."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.serving.process import ServerProcess
from tests.support.fuzzing import clear_controls, fuzz, num_accepted
from tests.support.policies import OBSERVATIONS, continuous_folder, discrete_folder

NUM_EXAMPLES = 10
LIFTS = "POST /override", "DELETE /override", "PUT /kill-switch", "PUT /plan"
AGENTS = "POST /decide", "POST /feedback", "POST /v2/models/{model}/infer"


@pytest.mark.parametrize("is_sample", [True, False], ids=["sample", "all"])
@pytest.mark.parametrize(
    ("make", "policy", "token"), [(discrete_folder, "cartpole", ""), (continuous_folder, "hopper", "correct horse")]
)
@pytest.mark.long_cases("discrete_folder-cartpole--sample", "discrete_folder-cartpole--all")
@pytest.mark.long_cases("continuous_folder-hopper-correct horse-all")
def test_every_answer_is_one_that_is_described(
    loomrl_home: Path, tmp_path: Path, make: Callable[[Path], Path], policy: str, token: str, is_sample: bool
) -> None:
    server = ServerProcess(
        policy,
        champion_folder=make(tmp_path / "champion"),
        challenger_folder=make(tmp_path / "challenger"),
        rate=1e6,
        environment={"LOOMRL_HOME": str(loomrl_home), "LOOMRL_OPERATOR_TOKEN": token},
    )
    with server, server.client(token=token) as client:
        report = fuzz(server.url, tmp_path / "report", NUM_EXAMPLES, token, is_sample=is_sample)
        clear_controls(client, policy)
        assert client.decide("a", OBSERVATIONS[0]).role == "champion"
        assert "Traceback" not in server.log()
    accepted = num_accepted(report)
    assert report["operations"]["tested"] == report["operations"]["total"]
    assert all(accepted[operation] for operation in (*AGENTS, *LIFTS)), accepted
    verified = CliRunner().invoke(audit_app, ["verify"])
    assert verified.exit_code == 0, verified.output

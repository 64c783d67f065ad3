"""`loomrl serve` as `make up` starts it, and `loomrl override` against it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.orders import override_app
from loomrl.serving.client import Ask, PolicyClient, Refused
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder

OBS = OBSERVATIONS[0].tolist()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyClient]:
    """Of a server that the command line started, its settings left as they are."""
    root = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(root))
        patch.delenv("LOOMRL_DATABASE_URL", raising=False)
        with served(root) as found:
            yield found


@contextmanager
def served(root: Path) -> Iterator[PolicyClient]:
    folder, port_file = discrete_folder(root / "policy"), root / "port.json"
    options = ["--policy", "cartpole", "--folder", str(folder), "--port", "0", "--port-file", str(port_file)]
    code = "import sys; from loomrl.cli.main import main; sys.exit(main())"
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", code, "serve", *options], stdout=log, stderr=log)
    try:
        wait_for(port_file.exists)
        with PolicyClient(json.loads(port_file.read_text())["url"]) as found:
            wait_for(found.is_ready)
            yield found
    finally:
        process.terminate()
        assert process.wait(30) == 0, (root / "log").read_text()


def override(*arguments: str) -> str:
    result = CliRunner().invoke(override_app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_person_overrides_from_the_command_line(client: PolicyClient) -> None:
    normal = client.decide("a", OBS).action
    given = ("set", "--policy", "cartpole", "--action", str(1 - normal), "--person", "Ada", "--reason", "test")
    assert "is in force on" in override(*given, "--server", client.url)
    assert client.decide("a", OBS).action == 1 - normal  # at once
    assert "lifted" in override("clear", "--policy", "cartpole", "--server", client.url)
    assert client.decide("a", OBS).action == normal
    assert "is written; running servers follow within a second" in override(*given)
    wait_for(lambda: client.decide("a", OBS).action == 1 - normal)
    override("clear", "--policy", "cartpole")
    wait_for(lambda: client.decide("a", OBS).action == normal)


def ask_without_end(client: PolicyClient) -> None:
    for _ in range(100):
        client.decide_many([Ask("greedy", OBS)] * 500)


def test_agents_are_limited_by_default(client: PolicyClient) -> None:
    rate = client.status()["rate_per_agent"]
    assert rate == 1_000.0
    with pytest.raises(Refused, match="1000 times a second") as refused:
        ask_without_end(client)
    assert refused.value.status == 429
    client.decide("modest", OBS)

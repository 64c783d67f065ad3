"""A real server process on small real policies, shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loomrl.serving.client import PolicyClient
from loomrl.serving.process import ServerProcess
from loomrl.system.http.tokens import ROLES, add
from tests.support.policies import BALANCING, discrete_folder

TOKEN = "correct horse"


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The LOOMRL_HOME of the module's server."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(server_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """CartPole's champion, and a challenger that does the opposite."""
    folders = tmp_path_factory.mktemp("policies")
    champion = discrete_folder(folders / "champion")
    challenger = discrete_folder(folders / "challenger", -BALANCING, value=3.0)
    started = ServerProcess(
        "cartpole",
        champion_folder=champion,
        challenger_folder=challenger,
        rate=200.0,
        seed=5,
        max_body_bytes=100_000,
        refresh_seconds=0.1,
        anchor_seconds=0.2,
        environment={"LOOMRL_HOME": str(server_home), "LOOMRL_OPERATOR_TOKEN": TOKEN},
    )
    with started:
        yield started


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """On loopback, without a token."""
    environment = {"LOOMRL_HOME": str(tmp_path_factory.mktemp("home")), "LOOMRL_OPERATOR_TOKEN": ""}
    folder = discrete_folder(tmp_path_factory.mktemp("policy"))
    with ServerProcess("cartpole", champion_folder=folder, environment=environment) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[PolicyClient]:
    """An operator's client."""
    with server.client(token=TOKEN) as found:
        yield found


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A token for each role, by the role."""
    path = tmp_path / "tokens"
    monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(path))
    monkeypatch.delenv("LOOMRL_OPERATOR_TOKEN", raising=False)
    return {role: add(path, f"{role}-holder", [role]) for role in ROLES}

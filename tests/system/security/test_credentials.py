"""The logins of this machine's servers: generated once, readable by their owner alone, sent to no other server."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loomrl.errors import ConfigError
from loomrl.system.security import credentials

PREFECT, MLFLOW = "http://127.0.0.1:4200/api", "http://127.0.0.1:5000"


@pytest.fixture(autouse=True)
def no_logins_set(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        credentials.PREFECT_LOGIN,
        credentials.PREFECT_URL,
        credentials.MLFLOW_USER,
        credentials.MLFLOW_PASSWORD,
        "MLFLOW_TRACKING_TOKEN",
    ):
        monkeypatch.setenv(name, "")  # so that what a test sets is gone after it


def test_they_are_generated_once_and_readable_by_their_owner_only(loomrl_home: Path) -> None:
    before = os.umask(0)
    try:
        path = credentials.create_credentials(PREFECT, MLFLOW)
    finally:
        os.umask(before)
    assert path == loomrl_home / "services" / "credentials.env"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = credentials.read_credentials()
    credentials.create_credentials("http://127.0.0.1:14200/api", MLFLOW)
    assert credentials.read_credentials() == first | {credentials.PREFECT_URL: "http://127.0.0.1:14200/api"}
    assert len(set(first.values())) == 5


def test_concurrent_starts_agree() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: credentials.create_credentials(PREFECT, MLFLOW), range(16)))
        found = list(pool.map(lambda _: credentials.read_credentials()[credentials.PREFECT_LOGIN], range(4)))
    assert len(set(found)) == 1


def test_an_incomplete_file_is_replaced(loomrl_home: Path) -> None:
    path = credentials.create_credentials(PREFECT, MLFLOW)
    path.write_text(f"{credentials.PREFECT_URL}=")
    credentials.create_credentials(PREFECT, MLFLOW)
    assert credentials.read_credentials()[credentials.PREFECT_LOGIN].startswith("loomrl:")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_shell_reads_them(loomrl_home: Path) -> None:
    path = credentials.create_credentials(PREFECT, MLFLOW)
    told = subprocess.run(
        [
            "bash",
            "-c",
            f"set -a; . {path}; {sys.executable} -c 'import os; print(os.environ[\"{credentials.PREFECT_LOGIN}\"])'",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == credentials.read_credentials()[credentials.PREFECT_LOGIN]


def test_they_are_sent_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials.create_credentials(PREFECT, MLFLOW)
    assert (
        credentials.prefect_login("http://localhost:4200/api")
        == credentials.read_credentials()[credentials.PREFECT_LOGIN]
    )
    for other in ("http://evil.example:4200/api", "http://127.0.0.1:4201/api", "https://127.0.0.1:4200/api", None):
        assert credentials.prefect_login(other) is None
    credentials.set_mlflow_login("http://evil.example:5000")
    assert not os.environ[credentials.MLFLOW_USER]
    credentials.set_mlflow_login("http://localhost:5000")
    assert os.environ[credentials.MLFLOW_PASSWORD] == credentials.read_credentials()[credentials.MLFLOW_PASSWORD]


def test_logins_in_the_environment_come_first_and_belong_to_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials.create_credentials(PREFECT, MLFLOW)
    monkeypatch.setenv(credentials.PREFECT_URL, "https://prefect.example/api")
    monkeypatch.setenv(credentials.PREFECT_LOGIN, "ada:lovelace")
    monkeypatch.setenv(credentials.MLFLOW_USER, "ada")
    credentials.set_prefect_login()
    credentials.set_mlflow_login(MLFLOW)
    assert os.environ[credentials.PREFECT_LOGIN] == "ada:lovelace"
    assert (os.environ[credentials.MLFLOW_USER], os.environ[credentials.MLFLOW_PASSWORD]) == ("ada", "")
    assert credentials.prefect_login("https://prefect.example/api") == "ada:lovelace"
    assert credentials.prefect_login(PREFECT) == credentials.read_credentials()[credentials.PREFECT_LOGIN]


def test_prefects_client_is_given_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials.create_credentials(PREFECT, MLFLOW)
    monkeypatch.setenv(credentials.PREFECT_URL, PREFECT)
    credentials.set_prefect_login()
    assert os.environ[credentials.PREFECT_LOGIN] == credentials.read_credentials()[credentials.PREFECT_LOGIN]


def test_no_server_starts_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.MLFLOW_USER, "loomrl")
    with pytest.raises(ConfigError, match=f"{credentials.MLFLOW_PASSWORD} must be set.*loomrl keys credentials"):
        credentials.require_variables(credentials.MLFLOW_USER, credentials.MLFLOW_PASSWORD)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    for module in ("flows.server", "loomrl.storage.registry.tracking_server"):
        started = subprocess.run(
            [sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert started.returncode == 2, started.stderr
        assert started.stderr.startswith("ConfigError: "), started.stderr

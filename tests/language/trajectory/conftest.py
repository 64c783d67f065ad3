"""Hubs and the reference, started once for a file."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import need_reference, reference_server
from tests.support.databases import database_url, postgresql_server, postgresql_url

__all__ = ["database_url", "postgresql_server", "postgresql_url"]


@pytest.fixture(scope="module")
def hub_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    database = tmp_path_factory.mktemp("hub") / "hub.db"
    with HubProcess(database_url=f"sqlite:///{database}") as process:
        yield process


@pytest.fixture
def hub(hub_process: HubProcess) -> Iterator[httpx.Client]:
    """A client of an empty hub."""
    with httpx.Client(base_url=hub_process.url, trust_env=False, timeout=30) as client:
        client.get("/reset_data")
        yield client


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub of the test's own, which it may kill."""
    with HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}") as process:
        yield process


@pytest.fixture(scope="session")
def reference_url() -> Iterator[str]:
    """The reference's server."""
    need_reference()
    with reference_server() as (url, _):
        yield url

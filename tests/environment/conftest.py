"""Every test has a home of its own."""

from pathlib import Path

import pytest

from tests.support.rooms_package import write_rooms


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """A folder with a user's package."""
    return write_rooms(tmp_path / "code")

"""Fixtures every room may use."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def loomrl_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty LOOMRL_HOME of the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("LOOMRL_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)
    return home

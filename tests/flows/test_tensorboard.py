"""A stage's curves reach TensorBoard where a folder is named, and nothing is written where none is."""

import time
from pathlib import Path

import pytest

from tasks.tensorboard import Board
from tests.support.event_files import scalars


def test_points_are_written_by_policy_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_TENSORBOARD", str(tmp_path / "boards"))
    with Board("cartpole", "run-1") as board:
        board.add("training/episode_return", 20.5, 2_048, time.time())
        board.add("training/validation_success_rate", 0.25, 4_096, time.time())
    assert scalars(tmp_path / "boards" / "cartpole" / "run-1") == [
        ("training/episode_return", 2_048, 20.5),
        ("training/validation_success_rate", 4_096, 0.25),
    ]


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOMRL_TENSORBOARD", raising=False)
    monkeypatch.chdir(tmp_path)
    with Board("cartpole", "run-1") as board:
        board.add("training/episode_return", 20.5, 2_048, time.time())
    assert list(tmp_path.iterdir()) == []

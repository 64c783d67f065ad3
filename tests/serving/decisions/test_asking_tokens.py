"""Which tokens ask for decisions: what one worker knows, all do."""

import os
import resource
import signal
from pathlib import Path

from loomrl.serving.decisions.asking_tokens import AskingTokens


def test_what_one_adds_all_know(tmp_path: Path) -> None:
    one, other = AskingTokens(tmp_path / "asking"), AskingTokens(tmp_path / "asking")
    one.add(["a b", "\u00e4"])
    assert "a b" in other
    assert "\u00e4" in other
    assert "a" not in other
    other.add(["a"])
    assert "a" in one
    size = (tmp_path / "asking").stat().st_size
    one.add(["a b", "\u00e4"])
    assert (tmp_path / "asking").stat().st_size == size
    assert "a b" in AskingTokens(tmp_path / "asking")  # one that is started again
    assert (tmp_path / "asking").stat().st_mode & 0o777 == 0o600


def test_half_a_name_is_none(tmp_path: Path) -> None:
    """Of a writer that has not ended, or that a full disk cut off."""
    one = AskingTokens(tmp_path / "asking")
    with (tmp_path / "asking").open("ab") as file:
        file.write(b"\nfleet")
    assert "fleet" not in one
    AskingTokens(tmp_path / "asking").add(["b"])
    assert "b" in one
    assert "fleetb" not in one


def test_without_room_it_is_told_later(tmp_path: Path) -> None:
    one, other = AskingTokens(tmp_path / "asking"), AskingTokens(tmp_path / "asking")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        one.add(["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "a" in one
    assert "a" not in other
    one.add(["a"])
    assert "a" in other


def test_one_alone_needs_no_file(tmp_path: Path) -> None:
    alone = AskingTokens()
    alone.add(["a"])
    assert "a" in alone
    assert "b" not in alone
    assert os.listdir(tmp_path) == []

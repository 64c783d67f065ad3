"""Modules that moved are found by their old names, which warns, and are the same modules."""

import importlib
import re
import subprocess
import sys

import pytest

from loomrl.system.moved import RENAMED, new_name


@pytest.mark.parametrize("old", ["loomrl.serving.tokens", "loomrl.replay", "loomrl.config", "loomrl.finite"])
def test_an_old_name_gives_the_module_itself_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"^{old} is {new_name(old)} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new_name(old) or "")
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == new_name(old)


@pytest.mark.filterwarnings("ignore:.* now, and its old name ends:DeprecationWarning")
def test_every_old_name_is_found_and_nothing_else_has_it() -> None:
    for old, new in RENAMED.items():
        assert importlib.util.find_spec(new) is not None, new
        found = importlib.util.find_spec(old)
        assert found is not None, old
        is_alias = found.name == new or type(found.loader).__module__ == "loomrl.system.moved"
        assert is_alias, f"{old} is a module of its own"


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"loomrl\.nowhere"):
        importlib.import_module("loomrl.nowhere")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("loomrl.replay.nowhere")


@pytest.mark.parametrize("old", ["stages", "trajectory", "inference", "registry.tracking_server"])
def test_an_old_program_runs(old: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"loomrl.{old}", "--help"], capture_output=True, text=True, check=False
    )
    assert re.search("usage|MLFLOW_SERVER_ALLOWED_HOSTS", done.stdout + done.stderr, re.IGNORECASE)

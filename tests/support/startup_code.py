"""Code that a server runs before its own: how tests make a system call fail, or the process die in the middle."""

import os
import runpy
from collections.abc import Mapping
from pathlib import Path

_FOLDER = "LOOMRL_TESTS_STARTUP_CODE"


def environment_with(code: str, folder: Path) -> dict[str, str]:
    """For a process whose Python runs the code when it starts; `folder` is made for it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), before])), _FOLDER: str(folder)}


def without_startup_code(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, were there no such code in it."""
    variables = dict(environment)
    first, _, others = variables.get("PYTHONPATH", "").partition(os.pathsep)
    if first and first == variables.get(_FOLDER):
        del variables[_FOLDER], variables["PYTHONPATH"]
        variables |= {"PYTHONPATH": others} if others else {}
    return variables


def run_startup_code() -> None:
    """What Python does when it starts, in a process that is a copy of one that has started."""
    if folder := os.environ.get(_FOLDER):
        runpy.run_path(str(Path(folder) / "sitecustomize.py"))

"""Code that a server runs before its own: how tests make a system call fail, or the process die in the middle."""

import os
from pathlib import Path


def environment_with(code: str, folder: Path) -> dict[str, str]:
    """For a process whose Python runs the code when it starts; `folder` is made for it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}

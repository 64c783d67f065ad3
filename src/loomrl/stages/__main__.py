"""Run one stage of one policy, as `dvc.yaml` does: `python -m loomrl.stages NAME POLICY`."""

import importlib
import os
import sys
import threading
import time
from pathlib import Path

from loomrl import events
from loomrl.config import load_config
from loomrl.errors import ConfigError, LoomRLError
from loomrl.files import verify_sums, write_sums
from loomrl.home import project_root
from loomrl.stages import ORDER, Folders


def run_stage(name: str, policy: str, project: Path) -> None:
    """Verify the inputs' manifests, run the stage, write its manifest."""
    if name not in ORDER:
        raise ConfigError(f"unknown stage {name!r}; stages: {', '.join(ORDER)}")
    config = load_config(project / "configs" / f"{policy}.yaml")
    folders = Folders(project, policy)
    stage = importlib.import_module(f"loomrl.stages.{name}")
    for needed in stage.INPUTS:
        verify_sums(folders[needed])
    folders[name].mkdir(parents=True, exist_ok=True)
    stage.run(config, folders)
    write_sums(folders[name])


def die_with_parent(poll_seconds: float = 0.5) -> None:
    """End this process when the one that started it is gone.

    DVC or the flow may be killed with -9; a stage that lived on would write beside the one that replaces it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_seconds)
        os._exit(LoomRLError.exit_code)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def main(arguments: list[str]) -> int:
    """Run the stage; report its outcome as an event; return the exit code."""
    if len(arguments) != 2:
        print("usage: python -m loomrl.stages NAME POLICY", file=sys.stderr)
        return ConfigError.exit_code
    name, policy = arguments
    started = time.monotonic()
    die_with_parent()
    events.emit("started", stage=name, pid=os.getpid())
    try:
        run_stage(name, policy, project_root())
    except LoomRLError as error:
        if not events.somebody_listens():
            print(f"{name} {policy}: {error}", file=sys.stderr)
        events.emit("failed", stage=name, message=str(error), exit_code=error.exit_code)
        return error.exit_code
    events.emit("finished", stage=name, seconds=time.monotonic() - started)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run one stage of one policy, as `dvc.yaml` does: `python -m loomrl.stages NAME POLICY`."""

import importlib
import sys
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


def main(arguments: list[str]) -> int:
    """Run the stage; report its outcome as an event; return the exit code."""
    if len(arguments) != 2:
        print("usage: python -m loomrl.stages NAME POLICY", file=sys.stderr)
        return ConfigError.exit_code
    name, policy = arguments
    started = time.monotonic()
    try:
        run_stage(name, policy, project_root())
    except LoomRLError as error:
        print(f"{name} {policy}: {error}", file=sys.stderr)
        events.emit("failed", stage=name, message=str(error), exit_code=error.exit_code)
        return error.exit_code
    events.emit("finished", stage=name, seconds=time.monotonic() - started)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run one stage of one policy, as `dvc.yaml` does: `python -m loomrl.runs.stages NAME POLICY`."""

import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from loomrl.errors import ConfigError, LoomRLError
from loomrl.runs.config import load_config
from loomrl.runs.stages import CODE, ORDER, Folders
from loomrl.system import events
from loomrl.system.files import verify_sums, write_sums
from loomrl.system.home import config_file, project_root
from loomrl.system.lifetime import die_with_parent

# Sums have one order on one thread only. A child process inherits it.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_stage(name: str, policy: str, project: Path) -> None:
    """Verify the inputs' manifests, run the stage, write its manifest, `SHA256SUMS`, into its folder.

    Raises:
        ConfigError: for an unknown stage, or a config that is not valid.
        ArtifactError: when an input is missing or was changed, or the code of a plug-in changes while the stage runs.
        GateRefused: when the stage is a gate and refuses.
        Exception: whatever else the stage raises. The folder then holds what it left, without a manifest of it.
    """
    if name not in (CODE, *ORDER):
        raise ConfigError(f"unknown stage {name!r}; stages: {', '.join((CODE, *ORDER))}")
    config = load_config(config_file(policy, project))
    folders = Folders(project, policy)
    stage = importlib.import_module(f"loomrl.runs.stages.{name}")
    for needed in stage.INPUTS:
        verify_sums(folders[needed])
    folders[name].mkdir(parents=True, exist_ok=True)
    from loomrl.runs.stages.plugins import plugin_code, write_plugins  # may load the code of others, and so torch

    code = plugin_code(name, config)
    packages = code.packages()
    stage.run(config, folders)
    write_plugins(code, packages, folders[name])
    write_sums(folders[name])


def main(arguments: list[str]) -> int:
    """Run the stage that `[NAME, POLICY]` names; report its outcome as an event; return the exit code.

    Only a gate ends with 1: whatever else goes wrong ends with another code, an error nobody foresaw too.
    """
    if len(arguments) != 2:
        print("usage: python -m loomrl.runs.stages NAME POLICY", file=sys.stderr)
        return ConfigError.exit_code
    name, policy = arguments
    os.environ |= ONE_THREAD  # before the stage imports numpy or torch, which read it once
    die_with_parent()  # a stage that lived on would write beside the one that replaces it
    try:
        _told(name, policy)
    except LoomRLError as error:
        if not events.somebody_listens():
            print(f"{name} {policy}: {error}", file=sys.stderr)
        return _failed(name, str(error), error.exit_code)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an environment may call exit(1) as well
        traceback.print_exc()
        return _failed(name, f"{type(error).__name__}: {error}", LoomRLError.exit_code)
    return 0


def _told(name: str, policy: str) -> None:
    started = time.monotonic()
    events.emit("started", stage=name, pid=os.getpid())
    run_stage(name, policy, project_root())
    events.emit("finished", stage=name, seconds=time.monotonic() - started)


def _failed(name: str, message: str, exit_code: int) -> int:
    try:
        events.emit("failed", stage=name, message=message, exit_code=exit_code)
    except OSError as error:  # the exit code still tells
        print(f"{name}: cannot write the event 'failed' ({message}): {error}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

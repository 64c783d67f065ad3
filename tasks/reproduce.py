"""Have DVC run one stage, and follow its progress while it does."""

import logging
import os
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from dvc.exceptions import DvcException, ReproductionError
from dvc.lock import LockError
from dvc.repo import Repo

from loomrl.errors import BY_EXIT_CODE, ArtifactError, ConfigError, LoomRLError
from loomrl.runs.stages import CODE
from loomrl.runs.stages.code import is_current
from loomrl.runs.stages.plugins import different, plugin_code, read_plugins
from loomrl.storage import provenance
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.run_record import read_run, run_folder
from loomrl.system.events import VARIABLE
from loomrl.system.files import SUMS, digest_folder, verify_sums
from loomrl.system.home import project_root
from tasks.progress import Follower
from tasks.record import StageEntry, project_folders, run_config
from tasks.say import say

logging.getLogger("dvc").setLevel(logging.ERROR)  # what DVC tells of its steps, the run's table tells better

LOCK_PATIENCE_SECONDS = 600.0
POLL_SECONDS = 0.1


def reproduce(run_id: str, stage: str, entry: StageEntry, force: bool = False) -> None:
    """Run `stage` through DVC unless its outputs are up to date; fill in the entry's status, digest and lock.

    Raises:
        LoomRLError: the stage's own error, of the class its process reported, or that the process was killed.
    """
    policy = read_run(run_id).policy
    target = f"{stage}@{policy}"
    _name_tampering(run_id, stage)
    _list_code(run_id, stage, policy)
    path = run_folder(run_id) / "events" / f"{stage}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with Follower(run_id, stage, path) as follower:
        stale = _followed(target, stage, follower, path, force)
        if not follower.started and _plugins_changed(run_id, stage):
            stale = _followed(target, stage, follower, path, force=True)
    folder = project_folders(run_id)[stage]
    entry.status = "unchanged" if not stale else "ran" if follower.started else "restored"
    entry.digest = digest_folder(folder)
    entry.lock = provenance.lock_entries(project_root(), policy)[stage]
    entry.plugins = [package.node for package in read_plugins(folder)]
    with LoomDB.open() as db:
        for node in entry.plugins:
            db.link(f"run:{run_id}", "used", node)


def _list_code(run_id: str, stage: str, policy: str) -> None:
    """Have DVC list anew which code the stages run where that of `stage` has changed; a project before this list
    depends on folders of sources instead.
    """
    stages = yaml.safe_load((project_root() / "dvc.yaml").read_text())["stages"]
    is_listed = CODE in provenance.lock_entries(project_root(), policy)
    if CODE not in stages or (is_listed and is_current(stage, run_config(run_id), project_folders(run_id))):
        return
    os.environ.pop(VARIABLE, None)  # its errors go to the terminal: no task follows it
    try:
        _reproduce(f"{CODE}@{policy}", False, {})
    except DvcException as error:
        raise LoomRLError(f"DVC could not run {CODE}@{policy}: {error}") from error


def _followed(target: str, stage: str, follower: Follower, path: Path, force: bool) -> list[Any]:
    """What DVC ran or restored; the stage's own error where its process reported one."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_reproduce, target, force, {VARIABLE: str(path)})
        _follow(future, follower)
        try:
            return future.result()
        except ReproductionError as error:
            raise _stage_error(stage, follower, error) from error
        except DvcException as error:
            raise LoomRLError(f"DVC could not run {target}: {error}") from error


def _plugins_changed(run_id: str, stage: str) -> bool:
    """Whether installed packages of others are no longer those that made the stage's output.

    DVC sees the project's own files; where such packages lie is outside.
    """
    made_with = read_plugins(project_folders(run_id)[stage])
    changed = different(made_with, plugin_code(stage, run_config(run_id)).packages())
    if changed:
        say(f"{stage}: code of {', '.join(changed)} is not what made the last output; it is made again")
    return bool(changed)


def _name_tampering(run_id: str, stage: str) -> None:
    """DVC puts back what was changed behind its back; the person should know that it was."""
    folder = project_folders(run_id)[stage]
    if (folder / SUMS).is_file():
        try:
            verify_sums(folder)
        except ArtifactError as error:
            say(f"{error}; it is made again")


def _reproduce(target: str, force: bool, variables: dict[str, str]) -> list[Any]:
    """`dvc repro --single-item TARGET`; waits while another DVC command holds the project."""
    os.environ.update(variables)
    own = str(Path(sys.executable).parent)  # where the stages' `python` lies, also when its venv was never activated
    if not os.environ["PATH"].startswith(own):
        os.environ["PATH"] = f"{own}{os.pathsep}{os.environ['PATH']}"
    deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            with Repo(project_root()) as repo:
                return list(repo.reproduce(target, single_item=True, force=force))
        except LockError as error:
            if time.monotonic() > deadline:
                raise ConfigError(f"another DVC command holds this project: {error}; end it and run again") from error
            print("another DVC command is running in this project; waiting for it to end", file=sys.stderr, flush=True)
            time.sleep(5)


def _follow(future: "Future[list[Any]]", follower: Follower) -> None:
    try:
        while not future.done():
            follower.read()
            time.sleep(POLL_SECONDS)
    except BaseException:  # cancelled, timed out or interrupted: the stage's process must not outlive the flow
        if follower.pid is not None and not future.done():
            os.kill(follower.pid, signal.SIGTERM)
        raise
    finally:
        follower.read()


def _stage_error(stage: str, follower: Follower, error: ReproductionError) -> LoomRLError:
    if follower.failure is None:
        return LoomRLError(
            f"the {stage} stage's process died without a word (killed, or out of memory): {error.__cause__ or error}; "
            "run the same command again: finished stages are kept and training resumes from its checkpoint"
        )
    kind = BY_EXIT_CODE.get(follower.failure["exit_code"], LoomRLError)
    return kind(follower.failure["message"])

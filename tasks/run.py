"""The frame of a life-cycle run: what it holds while it runs, and what is recorded however it ends."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL

from loomrl.errors import GateRefused, LoomRLError
from loomrl.promotion.promote import champion_of
from loomrl.promotion.rules import WAITING
from loomrl.runs import preflight
from loomrl.runs.config import PolicyConfig, load_config, write_overrides
from loomrl.runs.stages import CODE
from loomrl.storage import provenance, registry
from loomrl.storage.run_record import RunRecord, alive_lock, new_run_id, now, read_run, run_folder, write_run
from loomrl.system.files import write_atomic
from loomrl.system.home import config_file, home, project_root
from tasks.closing import close, mark_crashed_runs
from tasks.flow_parameters import load_with_parameters
from tasks.record import project_folders, run_folders, update
from tasks.say import say

WAITING_MESSAGE = "another life cycle is running in this project; waiting for it to end"

_from_command: ContextVar[bool] = ContextVar("from_command", default=False)


@contextmanager
def overrides_from_command() -> Iterator[None]:
    """Within the block overrides may change anything: whoever runs a command here could edit the config as well."""
    token = _from_command.set(True)
    try:
        yield
    finally:
        _from_command.reset(token)


@contextmanager
def life_cycle(policy: str, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Open a run and yield its id; record its outcome and build its report, however it ends.

    Raises:
        ConfigError: before anything is recorded, when the config or an override is wrong, or an override that came as
            a flow run's parameter changes more than numbers and choices.
        GateRefused: before anything is recorded, when there was a champion and its alias is gone.
    """
    load = load_config if _from_command.get() else load_with_parameters
    config = load(config_file(policy), overrides)
    preflight.check(config, project_root())
    overrides = {**overrides, **preflight.settle(config, project_root())}
    mark_crashed_runs()
    champion = champion_of(registry.Registry(), policy)
    run_id = new_run_id()
    run_folder(run_id).mkdir(parents=True)
    with FileLock(alive_lock(run_id)):  # before the record: a run without the lock counts as dead
        _open_record(run_id, config, overrides, champion.version if champion else None)
        try:
            yield run_id
        except LoomRLError as error:
            error.run_id = run_id
            close(run_id, "refused" if isinstance(error, GateRefused) else "failed", str(error))
            raise
        except BaseException as error:
            close(run_id, "failed", f"{type(error).__name__}: {error}")
            raise
        else:
            close(run_id, *_outcome(read_run(run_id)))


@contextmanager
def exclusive_project(run_id: str) -> Iterator[None]:
    """Hold the project alone while stages 1-5 run: their outputs and `dvc.lock` are shared by all runs.

    The overrides are written into the tracked config here, so that `dvc repro` sees what the flow saw; commit and
    uncommitted changes are those of this moment.
    """
    with _waiting_lock(home() / "project.lock"):
        record = read_run(run_id)
        config = write_overrides(config_file(record.policy), record.overrides)
        git = provenance.git_facts(project_root())
        if git and git.diff:
            write_atomic(run_folder(run_id) / "diff.patch", git.diff, mode=0o600)
        for name, why in (git.left_out if git else {}).items():
            say(f"{name} is left out of the run's diff.patch: it seems to hold a secret ({why}); git should ignore it")
        shutil.copy2(config_file(record.policy), run_folder(run_id) / "config.yaml")
        record = update(
            run_id,
            config=config.model_dump(mode="json"),
            git_commit=git.commit if git else None,
            git_dirty=git.dirty if git else False,
            left_out=git.left_out if git else {},
        )
        update(run_id, mlflow_run_id=_start_mlflow_run(record))
        try:
            yield
        finally:
            _keep(run_id)


@contextmanager
def _waiting_lock(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(WAITING_MESSAGE)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _open_record(run_id: str, config: PolicyConfig, overrides: Mapping[str, Any], champion: str | None) -> None:
    context = FlowRunContext.get()
    write_run(
        RunRecord(
            run_id=run_id,
            policy=config.name,
            state="running",
            started=now(),
            config=config.model_dump(mode="json"),
            overrides=dict(overrides),
            champion_before=champion,
            prefect_flow_run_id=str(context.flow_run.id) if context and context.flow_run else None,
            prefect_api_url=PREFECT_API_URL.value(),
        )
    )


def _start_mlflow_run(record: RunRecord) -> str:
    tags = {
        "loomrl.run_id": record.run_id,
        "git.commit": record.git_commit or "none",
        "git.dirty": str(record.git_dirty).lower(),
        "prefect.flow_run_id": record.prefect_flow_run_id or "none",
    }
    return registry.start_run(record.policy, record.run_id, tags, record.config)


def _keep(run_id: str) -> None:
    """Copy what this run's stages left, with the lock, to where later runs do not touch it."""
    for name in (CODE, *(stage.name for stage in read_run(run_id).stages)):
        left = project_folders(run_id)[name]
        if left.is_dir():
            shutil.copytree(left, run_folders(run_id)[name], dirs_exist_ok=True)
    if (project_root() / "dvc.lock").is_file():
        shutil.copy2(project_root() / "dvc.lock", run_folder(run_id) / "dvc.lock")


def _outcome(record: RunRecord) -> tuple[str, str]:
    if record.decision is None:
        return "failed", "no decision was reached"
    message = "; ".join(record.decision.reasons)
    if record.decision.decision == WAITING:
        message += f"; answer with `loomrl policy approve {record.run_id} --by NAME --reason TEXT`, or `reject`"
    return record.decision.decision, message

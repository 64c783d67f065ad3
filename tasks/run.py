"""The frame of a life-cycle run: its record, its MLflow run, its locks, its report; and runs that died."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from loomrl import provenance, registry
from loomrl.algorithms.registry import validate
from loomrl.config import PolicyConfig, load_config, write_overrides
from loomrl.errors import GateRefused
from loomrl.files import write_atomic
from loomrl.home import home, project_root
from loomrl.report.build import build_report
from loomrl.runs import RunRecord, StageRecord, list_runs, new_run_id, now, read_run, run_folder, write_run
from loomrl.safety.check import configured_checks
from loomrl.stages import Folders
from loomrl.types import Json
from tasks.say import say

WAITING_MESSAGE = "another life cycle is running in this project; waiting for it to end"


@contextmanager
def life_cycle(policy: str, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Open a run and yield its id; record its outcome and build its report, however it ends.

    Raises:
        ConfigError: before anything is recorded, when the config or an override is wrong.
    """
    config = load_config(config_path(policy), overrides)
    validate(config.training)
    configured_checks(config.safety)
    mark_crashed_runs()
    record = _open_record(policy, config, overrides)
    with FileLock(_alive(record.run_id)):
        record = _update(record.run_id, mlflow_run_id=_start_mlflow_run(record))
        try:
            yield record.run_id
        except GateRefused as refusal:
            _close(record.run_id, "refused", str(refusal))
            raise
        except BaseException as error:
            _close(record.run_id, "failed", f"{type(error).__name__}: {error}")
            raise
        else:
            _close(record.run_id, None, "")


@contextmanager
def exclusive_project(run_id: str) -> Iterator[None]:
    """Hold the project alone while stages 1-5 run: their outputs and `dvc.lock` are shared by all runs.

    The overrides are written into the tracked config here, so that `dvc repro` sees what the flow saw.
    """
    with _waiting_lock(home() / "project.lock"):
        record = read_run(run_id)
        config = write_overrides(config_path(record.policy), record.overrides)
        update(run_id, config=config.model_dump(mode="json"))
        try:
            yield
        finally:
            _keep(run_id)


@contextmanager
def exclusive_policy(run_id: str) -> Iterator[None]:
    """Hold a policy's aliases alone while shadow and promotion compare and move them."""
    with _waiting_lock(home() / f"policy-{read_run(run_id).policy}.lock"):
        yield


@dataclass
class StageEntry:
    """What a stage's task fills in while the stage runs."""

    status: str = "ran"
    verdict: str = ""
    digest: str | None = None
    lock: dict[str, Any] | None = None


@contextmanager
def recorded(run_id: str, stage: str) -> Iterator[StageEntry]:
    """Time a stage and add it to the run's record, whether it ends well or not."""
    entry, started = StageEntry(), time.monotonic()
    try:
        yield entry
    except GateRefused as refusal:
        entry.status, entry.verdict = "refused", str(refusal)
        raise
    except BaseException as error:
        entry.status, entry.verdict = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        _add_stage(run_id, stage, entry, time.monotonic() - started)


def dvc_hashes(locks: Mapping[str, Json | None]) -> dict[str, str]:
    """Tags with DVC's hash of each stage's output, from the stages' entries in `dvc.lock`."""
    outputs = {name: provenance.output_hashes(lock) for name, lock in locks.items() if lock}
    return {f"dvc.{name}": digest for name, paths in outputs.items() for digest in paths.values()}


def config_path(policy: str) -> Path:
    """The config file of a policy in this project."""
    return project_root() / "configs" / f"{policy}.yaml"


def run_config(run_id: str) -> PolicyConfig:
    """The effective config of a run."""
    return PolicyConfig.model_validate(read_run(run_id).config)


def project_folders(run_id: str) -> Folders:
    """The project's artifacts, as stages 1-5 write them."""
    return Folders(project_root(), read_run(run_id).policy)


def run_folders(run_id: str) -> Folders:
    """The run's own copy of the artifacts, which later runs do not touch."""
    return Folders(run_folder(run_id), read_run(run_id).policy)


def update(run_id: str, **changes: Any) -> RunRecord:
    """Change fields of a run's record and write it."""
    return _update(run_id, **changes)


def mark_crashed_runs() -> list[str]:
    """Give every run whose process is gone its true state, here, in MLflow and in Prefect; return their ids."""
    dead = [record for record in list_runs() if record.state == "running" and _is_dead(record.run_id)]
    for record in dead:
        write_run(record.model_copy(update={"state": "crashed", "finished": now(), "message": "its process died"}))
        if record.mlflow_run_id:
            registry.finish_run(record.mlflow_run_id, "KILLED")
        build_report(record.run_id, run_folder(record.run_id))
        if record.prefect_flow_run_id:
            _crash_flow_run(record.prefect_flow_run_id)
    return [record.run_id for record in dead]


def _crash_flow_run(flow_run_id: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            flow_run = client.read_flow_run(flow_run_id)  # type: ignore[arg-type]
        except ObjectNotFound:
            return  # another server's run, or one that was deleted: nothing there can say "Running"
        if flow_run.state and not flow_run.state.is_final():
            client.set_flow_run_state(flow_run.id, Crashed(message="its process died"), force=True)


def _is_dead(run_id: str) -> bool:
    lock = FileLock(_alive(run_id))
    try:
        with lock.acquire(timeout=0):
            return True
    except Timeout:
        return False


def _alive(run_id: str) -> Path:
    return run_folder(run_id) / "alive.lock"


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


def _open_record(policy: str, config: PolicyConfig, overrides: Mapping[str, Any]) -> RunRecord:
    context = FlowRunContext.get()
    git = provenance.git_facts(project_root())
    record = RunRecord(
        run_id=new_run_id(),
        policy=policy,
        state="running",
        started=now(),
        config=config.model_dump(mode="json"),
        overrides=dict(overrides),
        git_commit=git.commit if git else None,
        git_dirty=git.dirty if git else False,
        champion_before=registry.Registry().aliases(policy).get(registry.CHAMPION),
        prefect_flow_run_id=str(context.flow_run.id) if context and context.flow_run else None,
    )
    write_run(record)
    return record


def _start_mlflow_run(record: RunRecord) -> str:
    tags = {
        "loomrl.run_id": record.run_id,
        "git.commit": record.git_commit or "none",
        "git.dirty": str(record.git_dirty).lower(),
        "prefect.flow_run_id": record.prefect_flow_run_id or "none",
    }
    return registry.start_run(record.policy, record.run_id, tags, record.config)


def _keep(run_id: str) -> None:
    """Copy what stages 1-5 left, with lock, config and uncommitted diff, to where later runs do not touch it."""
    root, folder, policy = project_root(), run_folder(run_id), read_run(run_id).policy
    if project_folders(run_id).root.is_dir():
        shutil.copytree(project_folders(run_id).root, run_folders(run_id).root, dirs_exist_ok=True)
    shutil.copy2(config_path(policy), folder / "config.yaml")
    if (root / "dvc.lock").is_file():
        shutil.copy2(root / "dvc.lock", folder / "dvc.lock")
    git = provenance.git_facts(root)
    if git and git.diff:
        write_atomic(folder / "diff.patch", git.diff)


def _add_stage(run_id: str, stage: str, entry: StageEntry, seconds: float) -> None:
    done = StageRecord(
        name=stage,
        status=entry.status,
        seconds=seconds,
        verdict=entry.verdict,
        digest=entry.digest,
        lock=entry.lock,
    )
    earlier = [other for other in read_run(run_id).stages if other.name != stage]
    _update(run_id, stages=[*earlier, done])


def _update(run_id: str, **changes: Any) -> RunRecord:
    record = read_run(run_id).model_copy(update=changes)
    write_run(record)
    return record


def _close(run_id: str, state: str | None, message: str) -> None:
    record = read_run(run_id)
    if state is None:
        state = record.decision.decision if record.decision else "failed"
        message = "; ".join(record.decision.reasons) if record.decision else "no decision was reached"
    record = _update(run_id, state=state, finished=now(), message=message)
    build_report(run_id, run_folder(run_id))
    _log_to_mlflow(record)


def _log_to_mlflow(record: RunRecord) -> None:
    if record.mlflow_run_id is None:
        return
    folder = run_folder(record.run_id)
    for name in ("report.html", "report.json", "record.json", "dvc.lock", "config.yaml", "diff.patch"):
        if (folder / name).is_file():
            registry.log_artifacts(record.mlflow_run_id, folder / name, "run")
    if (folder / "artifacts").is_dir():
        for stage in ("environment", "training", "evaluation", "safety"):
            if (folder / "artifacts" / record.policy / stage).is_dir():
                registry.log_artifacts(record.mlflow_run_id, folder / "artifacts" / record.policy / stage, stage)
    registry.set_tags(record.mlflow_run_id, _tags(record))
    status = {"failed": "FAILED", "refused": "FAILED"}.get(record.state, "FINISHED")
    registry.finish_run(record.mlflow_run_id, status)


def _tags(record: RunRecord) -> dict[str, str]:
    """What the run came to, and DVC's hash of every stage's output."""
    tags = {"loomrl.state": record.state, "loomrl.version": record.version or "none"}
    for stage in record.stages:
        tags[f"loomrl.{stage.name}"] = stage.verdict[:500]
    return tags | dvc_hashes({stage.name: stage.lock for stage in record.stages})

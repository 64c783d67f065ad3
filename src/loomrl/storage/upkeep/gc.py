"""What may be freed, and why. Nothing that a version, an alias, a lineage edge or an anchored audit head needs.

Run records, effective configs, locks, differences and reports stay for ever: they are small, and lineage and rebuild
read them. What is listed can be made again, or says nothing about anything that is still kept.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loomrl.errors import ArtifactError, ConfigError
from loomrl.storage.registry import Registry
from loomrl.storage.run_record import is_alive, list_runs, run_folder
from loomrl.storage.upkeep.audit import AUDIT_SEGMENT, audit_garbage
from loomrl.storage.upkeep.dvc_cache import cache_garbage
from loomrl.storage.upkeep.items import Garbage
from loomrl.system.home import home
from loomrl.system.locks import hold_lock, is_held

_FINISHED = ("promoted", "unchanged", "refused", "failed", "crashed")
_KEPT_RUNS = 3  # the newest runs of a policy keep everything


@contextmanager
def quiet_project() -> Iterator[None]:
    """Hold the project alone: nothing is looked at or removed while a life cycle runs.

    Raises:
        ConfigError: when one does.
        ArtifactError: when a run's record cannot be read.
    """
    told = "a life cycle is running in this project; free space when it has ended"
    with hold_lock(home() / "project.lock", 0, lambda: ConfigError(told)):
        busy = [record.run_id for record in list_runs() if record.state == "running"]
        if alive := [run_id for run_id in busy if is_alive(run_id)]:
            raise ConfigError(f"run {alive[0]} is going on; free space when it has ended")
        yield


def find_garbage(days: int = 7, audit_days: int | None = None) -> list[Garbage]:
    """Everything that may be freed, largest first within its kind; segments of audit logs in their order.

    `days` is how long checkpoints, restored sources and the files of runs must have been unchanged. `audit_days` is as
    in `loomrl.storage.upkeep.audit.audit_garbage`. Nothing is removed.

    Raises:
        ServiceError: when MLflow or LoomDB cannot be reached, or DVC fails.
        ArtifactError: when a run's record or an entry of DVC's cache is damaged.
    """
    registry = Registry()
    oldest = time.time() - days * 86_400
    parts: list[Callable[[], Iterator[Garbage]]] = [
        lambda: _checkpoints(oldest),
        lambda: _restored_sources(oldest),
        lambda: _run_leftovers(registry, oldest),
        lambda: _downloads(registry),
        lambda: audit_garbage(registry, audit_days),
        cache_garbage,
    ]
    return [item for part in parts for item in sorted(part(), key=_by_size)]


def _by_size(item: Garbage) -> int:
    return 0 if item.kind == AUDIT_SEGMENT else -item.num_bytes  # a chain's segments leave in their order


def remove(found: list[Garbage]) -> None:
    """Remove what was found; a segment of an audit log only after its end was anchored (see `upkeep.audit`).

    Raises:
        ArtifactError: naming what could not be removed; what stood before it is gone, what follows is untouched.
        ServiceError: when LoomDB, where the removal of a segment is stated first, cannot be reached; likewise.
    """
    for item in found:
        if item.before_removal is not None:
            item.before_removal()
        path = Path(item.path)
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"cannot remove {path}: {error.strerror}; check its owner and permissions") from error


def _checkpoints(oldest: float) -> Iterator[Garbage]:
    for folder in sorted((home() / "checkpoints").glob("*")):
        if folder.is_dir() and _newest_change(folder) <= oldest and not is_held(folder / ".lock"):
            yield Garbage.of("checkpoints", folder, "no training has resumed from them lately")


def _restored_sources(oldest: float) -> Iterator[Garbage]:
    """Extracted archives; LoomDB and the snapshots keep the archives themselves."""
    extracted = [*(home() / "sources").glob("*"), *(home() / "snapshots").glob("*/source")]
    for folder in sorted(extracted):
        if folder.is_dir() and _newest_change(folder) <= oldest:
            yield Garbage.of("restored source", folder, "extracted again from its archive when it is needed")


def _run_leftovers(registry: Registry, oldest: float) -> Iterator[Garbage]:
    """Progress files of finished runs, packages that are in the registry, stage outputs of runs without a version."""
    registered = {version.run_id for policy in registry.policies() for version in registry.versions(policy)}
    seen: dict[str, int] = {}
    for record in list_runs():
        seen[record.policy] = seen.get(record.policy, 0) + 1
        folder = run_folder(record.run_id)
        recent = seen[record.policy] <= _KEPT_RUNS or _newest_change(folder) > oldest
        if recent or record.state not in _FINISHED:
            continue
        for name, reason in (("events", "progress of a finished run"), ("version", "its files are in the registry")):
            if (folder / name).is_dir():
                yield Garbage.of("run leftover", folder / name, reason)
        if record.run_id not in registered and (folder / "artifacts").is_dir():
            yield Garbage.of(
                "run leftover", folder / "artifacts", "the run made no version; its record and report stay"
            )


def _downloads(registry: Registry) -> Iterator[Garbage]:
    """Copies that policy servers fetched, of versions no alias names."""
    for folder in sorted((home() / "versions").glob("*/*")):
        if folder.name not in registry.aliases(folder.parent.name).values():
            yield Garbage.of("downloaded version", folder, "no alias names it; the registry has it")


def _newest_change(folder: Path) -> float:
    return max((path.lstat().st_mtime for path in (folder, *folder.rglob("*"))), default=0.0)

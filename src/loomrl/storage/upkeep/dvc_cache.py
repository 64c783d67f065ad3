"""Entries of DVC's cache that no commit, no run and not the work tree refer to.

`dvc gc` knows commits and the work tree only. A run never commits, so what a run's own `dvc.lock` names is added
here before anything counts as unused.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import yaml

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.run_record import RECORD, RunRecord
from loomrl.storage.upkeep.items import Garbage
from loomrl.system.home import home, project_root


def cache_garbage() -> Iterator[Garbage]:
    """Unused entries of the project's own DVC cache; none outside a project. One shared with others is left alone.

    Raises:
        ServiceError: when DVC cannot say what is used.
        ArtifactError: when the list of a cached folder, or a run's record, is damaged.
    """
    try:
        root = project_root()
    except ConfigError:
        return  # not inside a project: there is no cache to look at
    cache = root / ".dvc" / "cache" / "files" / "md5"
    if not cache.is_dir():
        return
    used = _expand(cache, _used_by_commits(root, cache) | _used_by_runs())
    for path in sorted(cache.glob("??/*")):
        if f"{path.parent.name}{path.name}".removesuffix(".dir") not in used:
            yield Garbage.of("DVC cache", path, "no commit, run or work tree refers to it")


def _used_by_commits(root: Path, cache: Path) -> set[str]:
    """What the work tree and every commit of every branch refer to, as DVC itself reckons."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from scmrepo.noscm import NoSCM

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of every stage that has not run yet
    try:
        with Repo(str(root)) as repo:
            if Path(repo.cache.local.path).resolve() != cache.resolve():
                # Shared by configuration: others may use what this project does not.
                return {f"{path.parent.name}{path.name}".removesuffix(".dir") for path in cache.glob("??/*")}
            has_git = not isinstance(repo.scm, NoSCM)
            found = repo.used_objs(all_commits=has_git, all_branches=has_git, all_tags=has_git)
    except DvcException as error:
        raise ServiceError(f"DVC cannot say what its cache is used for: {error}; nothing was removed") from error
    objects = (one for hashes in found.values() for one in hashes)
    return {str(one.value).removesuffix(".dir") for one in objects if one and one.value}


def _used_by_runs() -> set[str]:
    used: set[str] = set()
    for path in (home() / "runs").glob(f"*/{RECORD}"):
        record = RunRecord.read(path)
        locks = [stage.lock for stage in record.stages if stage.lock]
        lock = path.parent / "dvc.lock"
        if lock.is_file():
            locks += list(((yaml.safe_load(lock.read_text()) or {}).get("stages") or {}).values())
        for entry in locks:
            files = [*entry.get("outs", []), *entry.get("deps", [])]
            used |= {str(file["md5"]).removesuffix(".dir") for file in files if "md5" in file}
    return used


def _expand(cache: Path, used: set[str]) -> set[str]:
    """Add the files inside each folder that is used: a `.dir` entry lists them."""
    inside: set[str] = set()
    for digest in used:
        listing = cache / digest[:2] / f"{digest[2:]}.dir"
        if listing.is_file():
            try:
                inside |= {str(entry["md5"]) for entry in json.loads(listing.read_bytes())}
            except (ValueError, KeyError, TypeError) as error:
                raise ArtifactError(
                    f"{listing} is damaged: {error}; remove it and run `dvc repro`; nothing was removed"
                ) from error
    return used | inside

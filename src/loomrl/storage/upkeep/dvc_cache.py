"""Entries of DVC's cache that no commit, no run and not the work tree refer to.

What is referred to stands in files `dvc.lock` and `*.dvc`: of every commit, each content once, for a history has few
of them and DVC would read all its commits one by one; of the work tree; and of runs, which never commit.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.provenance import parse_yaml, versions_in_git
from loomrl.storage.run_record import RECORD, RunRecord
from loomrl.storage.upkeep.items import Garbage
from loomrl.system.home import home, project_root

_REFERRING = ("dvc.lock", "*.dvc")


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
    has_git = _has_git(root, cache)
    if has_git is None:
        return  # shared by configuration: others may use what this project does not
    used = _expand(cache, _used_by_commits(root, has_git) | _used_by_runs())
    for path in sorted(cache.glob("??/*")):
        if f"{path.parent.name}{path.name}".removesuffix(".dir") not in used:
            yield Garbage.of("DVC cache", path, "no commit, run or work tree refers to it")


def _has_git(root: Path, cache: Path) -> bool | None:
    """Whether DVC keeps this project in git; None where its cache is not this one."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from scmrepo.noscm import NoSCM

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of every stage that has not run yet
    try:
        with Repo(str(root)) as repo:
            if Path(repo.cache.local.path).resolve() != cache.resolve():
                return None
            return not isinstance(repo.scm, NoSCM)
    except DvcException as error:
        raise ServiceError(f"DVC cannot say what its cache is used for: {error}; nothing was removed") from error


def _used_by_commits(root: Path, has_git: bool) -> set[str]:
    """What the work tree refers to, and every commit of every branch. What a commit holds that is no YAML refers to
    nothing that DVC could restore."""
    used: set[str] = set()
    for path in _of_work_tree(root):
        try:
            used |= set(_digests(parse_yaml(path.read_bytes())))
        except yaml.YAMLError as error:
            raise ArtifactError(f"{path} is damaged: {error}; restore it with git; nothing was removed") from error
    for content in versions_in_git(root, *_REFERRING) if has_git else ():
        with suppress(yaml.YAMLError):
            used |= set(_digests(parse_yaml(content)))
    return used


def _of_work_tree(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in (".git", ".hg", ".dvc", ".venv")]
        found = (Path(folder, file) for file in files if any(fnmatch(file, one) for one in _REFERRING))
        yield from (path for path in found if path.is_file())


def _used_by_runs() -> set[str]:
    used: set[str] = set()
    for path in (home() / "runs").glob(f"*/{RECORD}"):
        record = RunRecord.read(path)
        used |= set(_digests([stage.lock for stage in record.stages]))
        lock = path.parent / "dvc.lock"
        if lock.is_file():
            used |= set(_digests(parse_yaml(lock.read_bytes())))
    return used


def _digests(document: Any) -> Iterator[str]:
    """All digests under `md5` in a document, however deep; those of folders without their suffix."""
    if isinstance(document, dict):
        if isinstance(digest := document.get("md5"), str):
            yield digest.removesuffix(".dir")
        document = list(document.values())
    if isinstance(document, list):
        for one in document:
            yield from _digests(one)


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

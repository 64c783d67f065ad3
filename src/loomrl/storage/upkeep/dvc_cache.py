"""Entries of DVC's cache that nothing in git, no run and no work tree refers to.

What is referred to stands in files `dvc.lock` and `*.dvc`: of all that git keeps, each content once, for a history has
few of them and DVC would read all its commits one by one; of the repository's work trees; and of runs, which never
commit. Whatever looks like a digest in one counts, so that damage hides none.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import yaml

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.provenance import lies_in_repository, other_work_trees, parse_yaml, versions_in_git
from loomrl.storage.run_record import RECORD, RunRecord
from loomrl.storage.upkeep.items import Garbage
from loomrl.system.home import home, project_root

_REFERRING = ("dvc.lock", "*.dvc")
_DIGEST = re.compile(rb"[0-9a-f]{32}")


def cache_garbage() -> Iterator[Garbage]:
    """Unused entries of the project's own DVC cache; none outside a project. One shared with others is left alone.

    Raises:
        ServiceError: when DVC or git cannot say what is used.
        ArtifactError: when the list of a cached folder, a run's record, or a `dvc.lock` or `*.dvc` of a run or the
            project's work tree is damaged.
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
    found = {digest.decode() for content in _referring(root, has_git) for digest in _DIGEST.findall(content)}
    used = _expand(cache, found)
    for path in sorted(cache.glob("??/*")):
        if f"{path.parent.name}{path.name}".removesuffix(".dir") not in used:
            yield Garbage.of("DVC cache", path, "no commit, run or work tree refers to it")


def _has_git(root: Path, cache: Path) -> bool | None:
    """Whether this project lies in git, though DVC was told of none; None where DVC's cache is not this one."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from scmrepo.noscm import NoSCM

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of every stage that has not run yet
    try:
        with Repo(str(root)) as repo:
            if Path(repo.cache.local.path).resolve() != cache.resolve():
                return None
            return not isinstance(repo.scm, NoSCM) or lies_in_repository(root)
    except DvcException as error:
        raise ServiceError(f"DVC cannot say what its cache is used for: {error}; nothing was removed") from error


def _referring(root: Path, has_git: bool) -> Iterator[bytes]:
    """All contents that may refer to the cache. What git and other work trees have need be no YAML."""
    yield from (_undamaged(path) for path in _of_work_tree(root))
    if has_git:
        yield from versions_in_git(root, *_REFERRING)
        for other in other_work_trees(root):
            yield from (path.read_bytes() for path in _of_work_tree(other))
    for path in (home() / "runs").glob(f"*/{RECORD}"):
        RunRecord.read(path)  # raises where it is damaged
        yield path.read_bytes()
        lock = path.with_name("dvc.lock")
        if lock.is_file():
            yield _undamaged(lock)


def _of_work_tree(top: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(top):
        below[:] = [name for name in below if name not in (".git", ".hg", ".dvc", ".venv")]
        found = (Path(folder, file) for file in files if any(fnmatch(file, one) for one in _REFERRING))
        yield from (path for path in found if path.is_file())


def _undamaged(path: Path) -> bytes:
    """What a file holds; an error where it is no YAML: digests may be missing from it."""
    content = path.read_bytes()
    try:
        parse_yaml(content)
    except yaml.YAMLError as error:
        raise ArtifactError(
            f"{path} is damaged: {error}; restore it with git or from a backup; nothing was removed"
        ) from error
    return content


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

"""The files of a plug-in's package: what it can run or read there, but for what tools leave.

An environment's source is `loomrl.environment.sources.roots.files_of`: it must run from its archive alone.
"""

import os
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

MAX_LINKED_DATA_BYTES = 128 * 2**20
_IMPORTED = tuple(all_suffixes())
_OF_TOOLS = {".coverage", ".DS_Store", ".git", ".gitattributes", ".gitignore", ".gitkeep", ".gitmodules"}
_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
_SKIPPED_SUFFIXES = {".pyo", ".swp"}


def package_files(location: Path, base: str) -> Iterator[tuple[Path, str]]:
    """Files of a package folder or of a module, each as (path, name below `base`).

    Linked folders are followed, but for links to a folder around them, and data sets: more than MAX_LINKED_DATA_BYTES
    without a file that Python can import, however deep. Hidden folders are left out, and bytecode that has its source
    beside it.
    """
    if location.is_file():
        yield location, f"{base}{location.suffix}"
        return
    for parent, folders, files in os.walk(location, followlinks=True):
        folders[:] = [name for name in folders if _is_entered(Path(parent) / name, location)]
        for path in (Path(parent) / name for name in files):
            if _counts(path):
                yield path, f"{base}/{path.relative_to(location).as_posix()}"


def _is_entered(folder: Path, location: Path) -> bool:
    if not _is_visible(folder.name):
        return False
    return not folder.is_symlink() or not (_leads_back(folder, location) or _is_data_set(folder))


def _is_visible(name: str) -> bool:
    return name not in _SKIPPED_FOLDERS and not name.startswith(".")


def _is_data_set(link: Path) -> bool:
    num_bytes = 0
    for parent, folders, files in os.walk(link):
        folders[:] = filter(_is_visible, folders)
        if any(name.endswith(_IMPORTED) for name in files):
            return False
        paths = (Path(parent) / name for name in files)
        num_bytes += sum(path.stat().st_size for path in paths if path.is_file())
    return num_bytes > MAX_LINKED_DATA_BYTES


def _leads_back(link: Path, location: Path) -> bool:
    """Whether a link leads to a folder that it was reached through, or to one around it: that would never end."""
    target = link.resolve()
    around = (parent for parent in link.parents if parent.is_relative_to(location))
    return any(parent.resolve().is_relative_to(target) for parent in around)


def _counts(path: Path) -> bool:
    if path.name in _OF_TOOLS or path.suffix in _SKIPPED_SUFFIXES or not path.is_file():
        return False
    return path.suffix != ".pyc" or not path.with_suffix(".py").is_file()

"""Which packages and modules an environment's code consists of, and where they lie."""

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from loomrl.environment.sources.importer import find_module
from loomrl.environment.sources.imports import imports_of
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.walks import reachable

_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
_SKIPPED_SUFFIXES = {".pyc", ".pyo"}
# Where these packages keep environments; the rest of them is the API, recorded as a dependency's version.
_FAMILIES = {"gymnasium": "gymnasium.envs", "loomrl": "loomrl.gym"}


def locate(folder: Path, root: str) -> Path:
    """The path of a dotted module name below an extracted archive; raises `ArtifactError` where it is missing."""
    *parents, last = root.split(".")
    found = find_module(folder.joinpath(*parents), last)
    if found is None:
        raise ArtifactError(f"{folder} holds no module {root!r}; take the snapshot again")
    return found


def closure(folder: Path, top: str) -> list[str]:
    """`top` and the modules beside it in `folder` that its code imports, directly or not, also inside functions: their
    names, `top` first. Raises `ArtifactError` where `folder` has no `top`."""

    def beside(name: str) -> list[str]:
        return [one for one in _top_level_imports(locate(folder, name)) if find_module(folder, one) is not None]

    return [top, *sorted(reachable([top], beside)[1:])]


def _top_level_imports(location: Path) -> set[str]:
    return {name.partition(".")[0] for path in python_files(location) for name in imports_of(path)}


def python_files(location: Path) -> list[Path]:
    """The Python files of a package folder or of a module."""
    return [path for path, _ in files_of(location, "") if path.suffix == ".py"]


def installed_locations(module: ModuleType, create: Callable[..., Any]) -> dict[str, Path]:
    """The entry point's root, those of its base classes, and the modules beside them that nothing else would keep.

    Returns where each lies, by its name; the entry point's own comes first.

    Raises:
        ConfigError: for a module without a source file.
    """
    names = [module.__name__, *(base.__module__ for base in getattr(create, "__mro__", ()))]
    roots = dict.fromkeys(root for root in map(_root_of, names) if root is not None)
    locations = {root: location for root in _with_own(roots) if (location := find_location(root)) is not None}
    if not locations:
        raise ConfigError(f"module {module.__name__!r} has no source file; put the environment into a file or package")
    return _with_neighbours(locations)


def _with_own(roots: Iterable[str]) -> list[str]:
    """With what roots of LoomRL's own family import of it: no version of a distribution stands for that either."""
    found = list(roots)
    for root in found:
        location = find_location(root)
        if location is None or not root.startswith(_FAMILIES["loomrl"] + "."):
            continue
        names = sorted({name for path in python_files(location) for name in imports_of(path)})
        inside = (_root_of(name) for name in names if name.startswith(_FAMILIES["loomrl"] + "."))
        found += dict.fromkeys(own for own in inside if own and own not in found)
    return found


def _root_of(name: str) -> str | None:
    """What is archived for a module: its top-level package, or its family inside Gymnasium and LoomRL."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top not in _FAMILIES:
        return top
    if not name.startswith(_FAMILIES[top] + "."):
        return None
    return ".".join(name.split(".")[: _FAMILIES[top].count(".") + 2])


def find_location(root: str) -> Path | None:
    """Where an importable name lies; imports the packages above it, not itself. None where there is no such thing."""
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None  # no package above it; or __main__, as in a notebook
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def _with_neighbours(locations: dict[str, Path]) -> dict[str, Path]:
    """With the modules that imports lead to and no distribution owns: no version could stand for them."""
    owned = distributions().keys() | _FAMILIES.keys() | sys.stdlib_module_names | locations.keys()

    def beside(one: tuple[str, Path]) -> list[tuple[str, Path]]:
        found = ((name, find_location(name)) for name in _top_level_imports(one[1]) - owned)
        return [(name, place) for name, place in found if place is not None and not is_installed(place)]

    neighbours = reachable([one for one in locations.items() if not is_installed(one[1])], beside)
    return {**locations, **dict(sorted(one for one in neighbours if one[0] not in locations))}


@cache
def distributions() -> Mapping[str, list[str]]:
    """The distributions that own each importable top-level name."""
    return importlib.metadata.packages_distributions()


def is_installed(location: Path) -> bool:
    """Whether a location lies in the interpreter's site-packages."""
    packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return any(parent in packages for parent in location.resolve().parents)


def files_of(location: Path, root: str) -> Iterator[tuple[Path, str]]:
    """Files of a root, each as (path, name in the archive), sorted; without hidden and bytecode files and linked
    folders."""
    base = root.replace(".", "/")
    if location.is_file():
        yield location, f"{base}{location.suffix}"
        return
    for parent, folders, files in os.walk(location):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            path = Path(parent) / name
            if path.suffix not in _SKIPPED_SUFFIXES and not name.startswith(".") and path.is_file():
                yield path, f"{base}/{path.relative_to(location).as_posix()}"

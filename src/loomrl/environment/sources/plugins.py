"""The code of packages outside LoomRL that a plug-in runs: its own package, and every one that it imports.

A version says what a distribution was when it was published, not what lies on this machine: such code is digested file
by file. What LoomRL itself requires is not: its versions are pinned, and those of what a plug-in imports are recorded.

Imports are read from the source, those inside functions too, and names that stand in calls of `import_module`,
`__import__` and `pkgutil.resolve_name`. Not seen is what a package imports by a name that it computes while it runs,
what compiled files import, and what a `.pth` file imports when Python starts.
"""

import ast
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, requires
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from loomrl.environment.sources.dependencies import with_requirements
from loomrl.environment.sources.imports import imported_names, literal_imports, package_of, parse
from loomrl.environment.sources.plugin_files import package_files
from loomrl.environment.sources.roots import distributions
from loomrl.environment.sources.source import tar_of
from loomrl.system.files import canonical_json, sha256, sha256_file
from loomrl.system.plugins import installed_version
from loomrl.system.schema import Document
from loomrl.system.walks import reachable

Places = tuple[Path, ...]  # a module's file; or a package's folder, then those that it adds to its `__path__`
MAX_ARCHIVED_BYTES = 128 * 2**20  # of all packages together
_OWN = {"loomrl", "tasks", "flows"}


class PluginPackage(Document):
    """A package, or single module, that a plug-in's code is in."""

    name: str  # as it is imported
    distribution: str | None  # that brought it; None for a file that no distribution owns
    version: str | None  # of that distribution
    digest: str  # SHA-256 over names and SHA-256 of its files
    archived: bool  # in plugins.tar, too: the small ones first, as long as they fit into MAX_ARCHIVED_BYTES

    @property
    def node(self) -> str:
        """The package's name in lineage graphs: `plugin:NAME@DIGEST`."""
        return f"plugin:{self.name}@{self.digest}"


@dataclass(frozen=True)
class PluginCode:
    """The packages that plug-ins' entry points lead to, and their files."""

    locations: dict[str, Places]  # of each package, by the name that is imported
    requirements: frozenset[str]  # distributions that it imports and LoomRL requires too, so that they are not digested

    def packages(self) -> list[PluginPackage]:
        """Each package with the digest of what it is now, sorted by name."""
        files = {name: list(_files(name, self.locations[name])) for name in sorted(self.locations)}
        sizes = {name: sum(path.stat().st_size for path, _ in found) for name, found in files.items()}
        ranked = sorted(sizes, key=sizes.__getitem__)
        fitting = dict(zip(ranked, itertools.accumulate(sizes[name] for name in ranked), strict=True))
        return [_package(name, files[name], fitting[name] <= MAX_ARCHIVED_BYTES) for name in files]

    def archive(self, packages: Iterable[PluginPackage]) -> bytes:
        """An uncompressed tar of those that are to be archived; equal content gives equal bytes. Hidden files, in which
        people keep secrets, are not in it."""
        found = (file for one in packages if one.archived for file in _files(one.name, self.locations[one.name]))
        return tar_of(sorted((member, path) for path, member in found if not path.name.startswith(".")))


def code_of(points: Iterable[EntryPoint]) -> PluginCode:
    """The packages of plug-ins and, through their imports, all others that are neither Python's nor LoomRL's own."""
    tops = set[str]()  # of all that is imported

    def roots_of(modules: Iterable[str]) -> Iterator[tuple[str, Places]]:
        for module in modules:
            tops.add(module.partition(".")[0])
            if (root := _root_of(module)) is not None:
                yield root

    def imported(root: tuple[str, Places]) -> Iterator[tuple[str, Places]]:
        return roots_of(name for name in _imports_of(*root) if not f"{name}.".startswith(f"{root[0]}."))

    locations = dict(reachable(roots_of(point.module for point in points), imported))
    owners = (owner for top in tops if top in _known() for owner in distributions()[top])
    return PluginCode(locations, frozenset(map(canonicalize_name, owners)))


def _files(name: str, places: Places) -> Iterator[tuple[Path, str]]:
    """The files of a package in all its places, each as (path, name in the archive)."""
    base = name.replace(".", "/")
    for number, place in enumerate(places):
        yield from package_files(place, f"{base}/__path__/{number}" if number else base)


def _imports_of(name: str, places: Places) -> Iterator[str]:
    """What the Python files of a package import."""
    for path, member in _files(name, places):
        if path.suffix == ".py":
            nodes, module = list(ast.walk(parse(path))), _module_of(member)
            yield from imported_names(nodes, package_of(path, module))
            yield from literal_imports(nodes, module, package_of(path, module))


def _module_of(member: str) -> str:
    """The dotted name of a file in the archive, in whichever of its package's places it lies."""
    path = re.sub(r"/__path__/\d+(?=/)", "", member).removesuffix(".py")
    return path.removesuffix("/__init__").replace("/", ".")


def _root_of(module: str) -> tuple[str, Places] | None:
    """The outermost package around a module that is a package of its own, not a shared namespace, and its places."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] in _OWN or parts[0] in _known():
        return None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return None  # an optional import of what is not there
        if spec is None:
            return None
        if spec.has_location and spec.origin is not None:
            return name, _places(name, Path(spec.origin), spec.submodule_search_locations is not None)
    return None


def _places(name: str, origin: Path, is_package: bool) -> Places:
    """Where the code of a module or package lies, the same whether it was imported before or not."""
    if not is_package:
        return (origin,)
    places = [origin.parent]
    for added in _search_path(name, origin):
        if added.is_dir() and not any(added.resolve().is_relative_to(place.resolve()) for place in places):
            places.append(added)
    return tuple(places)


def _search_path(name: str, origin: Path) -> list[Path]:
    """The folders in a package's `__path__`, which are known when it was imported: it is where its code names them."""
    if not origin.is_file() or b"__path__" not in origin.read_bytes():
        return []
    try:
        return [Path(place) for place in importlib.import_module(name).__path__]
    except (Exception, SystemExit):  # noqa: BLE001 - what cannot be imported here adds nothing
        return []


@cache
def _known() -> frozenset[str]:
    """Names by which what LoomRL requires, its extras included, is imported."""
    needed = {canonicalize_name(Requirement(text).name) for text in requires("loomrl") or ()}
    pinned = with_requirements(needed)
    owners = distributions().items()
    known = (name for name, owned_by in owners if pinned >= {canonicalize_name(owner) for owner in owned_by})
    return frozenset(known) - _OWN


def _package(name: str, files: list[tuple[Path, str]], is_archived: bool) -> PluginPackage:
    owners = distributions().get(name.partition(".")[0], [])
    distribution = owners[0] if len(owners) == 1 else None
    return PluginPackage(
        name=name,
        distribution=distribution,
        version=None if distribution is None else installed_version(distribution),
        digest=sha256(canonical_json({member: sha256_file(path) for path, member in files})),
        archived=is_archived,
    )

"""Which installed distributions an environment's code needs, and their versions."""

import ast
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from loomrl.environment.sources.imports import imported_names, package_of, parse
from loomrl.environment.sources.installed import exact_version
from loomrl.environment.sources.roots import distributions, is_installed, python_files
from loomrl.system.plugins import installed_version
from loomrl.system.walks import reachable

# What a picture needs is not what the dynamics need, and is often not installed.
_DRAWING = ("render", "draw", "close")
# LoomRL's own requirements (databases, command line) have no part in any environment's dynamics.
_OPAQUE = {"loomrl"}


def dependency_versions(locations: Mapping[str, Path], entry_module: str) -> dict[str, str]:
    """Exact versions of Python, of the distributions the code imports, and of all they require, by canonical name.

    Walks the modules that the entry point's module reaches, so a package's other environments add nothing. Imports
    for type checkers, and inside functions that draw, are left out. What is not installed is left out too: such an
    import is optional, else the environment could not be made.
    """
    own = {root.partition(".")[0] for root, location in locations.items() if not is_installed(location)}
    tops = {"gymnasium", "numpy", *(root.partition(".")[0] for root in locations)}
    for path in _reached(locations, entry_module):
        tops.update(name.partition(".")[0] for name in _needed_imports(path))
    tops -= own  # a user's folder may hold a module called like an installed package
    owners = distributions()
    names = {canonicalize_name(name) for top in tops for name in owners.get(top, ())}
    versions = {name: exact_version(name) for name in sorted(with_requirements(names))}
    return {"python": platform.python_version(), **versions}


def with_requirements(names: Iterable[str]) -> set[str]:
    """Distributions by canonical name, and all installed ones they require; LoomRL's own requirements are left out."""

    def required(name: str) -> Iterable[str]:
        return () if name in _OPAQUE else filter(installed_version, _requirements(name))

    return set(reachable(filter(installed_version, names), required))


def _requirements(name: str) -> Iterator[str]:
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _reached(locations: Mapping[str, Path], entry_module: str) -> list[Path]:
    """Files of the archive that the entry module imports, directly or not; itself first."""
    modules = dict(_modules(locations))

    def known(names: Iterable[str]) -> Iterator[str]:
        return (found for name in names if (found := _longest_known(name, modules)) is not None)

    reached = reachable(known([entry_module]), lambda name: known(_needed_imports(modules[name], name)))
    return [modules[name] for name in reached]


def _modules(locations: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for root, location in locations.items():
        for path in python_files(location):
            parts = [] if path == location else list(path.relative_to(location).with_suffix("").parts)
            yield ".".join([root, *(part for part in parts if part != "__init__")]), path


def _longest_known(name: str, modules: Mapping[str, Path]) -> str | None:
    """The module that `from a.b import c` needs: `a.b.c` if that is one, else `a.b`, else `a`."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _needed_imports(path: Path, module: str = "") -> Iterator[str]:
    """Names a file imports outside functions that draw; relative ones made absolute where `module` is given."""
    names = imported_names(_outside_drawing(parse(path)), package_of(path, module))
    return (name for name in names if name.partition(".")[0] not in sys.stdlib_module_names)


def _outside_drawing(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        draws = isinstance(node, ast.FunctionDef) and any(word in node.name for word in _DRAWING)
        if draws or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        yield node
        yield from _outside_drawing(node)

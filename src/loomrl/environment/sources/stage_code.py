"""The files of LoomRL that a stage of a policy runs: its module, and everything that this imports.

Imports are read from the source, those inside functions too; those for types alone do not count. What is imported by a
name that is only known at run time is listed here, and of algorithms only the one that the policy learns with counts.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import loomrl
from loomrl.environment.sources.imports import imported_names
from loomrl.system.files import sha256

# How a stage's process is started, reads its settings, counts its processors, reports and records the code of plug-ins,
# by path in the package: no policy can change by it, and the readers of settings import from every room.
CHANGES_NO_POLICY = frozenset(
    {
        *(
            f"{name}.py"
            for name in ("__init__", "errors", "runs/config", "runs/stages/__main__", "runs/stages/plugins")
        ),
        *(f"system/{name}.py" for name in ("events", "home", "lifetime", "moved", "names", "processors")),
        *(f"{room}/__init__.py" for room in ("promotion", "runs", "runs/stages", "shadow", "storage", "system")),
        *(f"{room}/config.py" for room in ("promotion", "serving", "shadow")),
    }
)
_LOOMDB = "storage/loomdb/"  # a registered environment never changes, however LoomDB stores it

# Folders whose modules are imported by a name that a config or an environment gives.
_STEPPING = tuple(f"environment/vector{folder}" for folder in ("", "/classic", "/robots", "/tensors"))
# An environment of LoomRL Gym is in the snapshot; what it imports of other rooms is not.
_ENVIRONMENTS = (*_STEPPING, "environment/finite/prism")
_ALGORITHMS = ("algorithms", "language/algorithms")
_BY_NAME = {
    "environment": (*_ENVIRONMENTS, "gym", "gym/domains"),
    "training": _ENVIRONMENTS,
    "evaluation": _ENVIRONMENTS,
    "safety": (*_ENVIRONMENTS, "safety/checks"),
    "export": (*_ENVIRONMENTS, "safety/checks"),
}
STAGES = tuple(_BY_NAME)


def stage_code(stage: str, algorithm: str) -> dict[str, str]:
    """Path relative to the package `loomrl`, with `/` -> SHA-256 of each file that a stage may run, sorted.

    Of the algorithms only `algorithm` counts, with what it imports; every one where it is a package of others, which
    may build on any. Files that are no modules, such as a schema, count where a module beside them does.

    Raises:
        KeyError: for a stage that is none of `STAGES`.
    """
    root = Path(loomrl.__file__).parent
    modules = [root / "runs" / "stages" / f"{stage}.py"]
    modules += [module for folder in _BY_NAME[stage] for module in _modules_in(root / folder)]
    if stage != "environment":
        modules += _algorithm(root, algorithm)
    found = _imported_by(modules, root)
    found |= {path: sha256(path.read_bytes()) for path in _beside(found)}
    return dict(sorted((path.relative_to(root).as_posix(), digest) for path, digest in found.items()))


def _modules_in(folder: Path) -> list[Path]:
    """The modules and packages that a folder shows, as `pkgutil.iter_modules` would find them."""
    return sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")])


def _algorithm(root: Path, name: str) -> list[Path]:
    """The module of one algorithm; those of all where none of ours has the name."""
    every = [module for folder in _ALGORITHMS for module in _modules_in(root / folder)]
    return [module for module in every if name == _last_name(module)] or every


def _last_name(module: Path) -> str:
    return module.parent.name if module.name == "__init__.py" else module.stem


def _imported_by(modules: Iterable[Path], root: Path) -> dict[Path, str]:
    """These modules and all they import, directly or not -> SHA-256."""
    found: dict[Path, str] = {}
    names: set[str] = set()  # of imports that were followed
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        name = module.relative_to(root).as_posix()
        if module in found or name in CHANGES_NO_POLICY or name.startswith(_LOOMDB):
            continue
        source = module.read_bytes()
        found[module] = sha256(source)
        new = set(_own_imports(source)) - names
        names |= new
        waiting += [file for name in new for file in _files_of(name, root)]
    return found


def _beside(modules: Iterable[Path]) -> Iterator[Path]:
    for folder in {module.parent for module in modules}:
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith("."):
                yield path


def _files_of(name: str, root: Path) -> Iterator[Path]:
    """The files that an import of a dotted name below `loomrl` runs: its packages' `__init__.py`, and its own."""
    folder = root
    for part in name.split(".")[1:]:
        if (folder / f"{part}.py").is_file():
            yield folder / f"{part}.py"
        folder /= part
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"


@cache
def _own_imports(source: bytes) -> tuple[str, ...]:
    """Dotted names below `loomrl` that a module imports when it runs: `a.b` of `from a import b`, whatever `b` is."""
    if b"loomrl" not in source:
        return ()
    names = imported_names(_at_run_time(ast.parse(source).body))
    return tuple(dict.fromkeys(name for name in names if name.startswith("loomrl.")))


def _at_run_time(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements, nested ones too, but for those under `if TYPE_CHECKING:`."""
    for statement in body:
        yield statement
        for inner in ("orelse",) if _is_for_types(statement) else ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _at_run_time(getattr(statement, inner, ()))


def _is_for_types(statement: ast.AST) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"

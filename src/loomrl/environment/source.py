"""An environment's source: finding it, archiving it to the byte, restoring it, loading its entry point."""

import ast
import importlib
import importlib.util
import io
import os
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.error import DependencyNotInstalled

from loomrl.environment.importer import PrivateImporter, find_module, get_entry_point
from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import sha256

ARCHIVE = "source.tar"
_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
_SKIPPED_SUFFIXES = {".pyc", ".pyo"}
_MAX_BYTES = 256 * 2**20
_EXTRAS = {"Box2D": "box2d", "pygame": "box2d", "mujoco": "mujoco", "imageio": "mujoco"}
# Where these packages keep environments; the rest of them is the API, recorded as a dependency's version.
_FAMILIES = {"gymnasium": "gymnasium.envs", "loomrl": "loomrl.gym"}


@dataclass(frozen=True)
class Source:
    """Loaded code of an environment.

    `create` is what the entry point names. `roots` are the packages and modules the code consists of, the entry
    point's own first; `locations` says where each lies.
    """

    entry_point: str
    create: Callable[..., Any]
    locations: dict[str, Path]

    @property
    def roots(self) -> list[str]:
        """Importable names, the entry point's own first."""
        return list(self.locations)


def load_source(entry_point: str, folder: Path | None = None) -> Source:
    """Load an entry point `module:Class`: from `folder`, under an alias of its own, or as Python finds it.

    Raises:
        ConfigError: when the entry point cannot be imported; names the cause and the fix.
    """
    module_name, _, qualified_name = entry_point.partition(":")
    if not module_name or not qualified_name:
        raise ConfigError(f"entry point {entry_point!r} must be written `module:Class`")
    if folder is not None:
        return _load_from_folder(entry_point, module_name, qualified_name, folder)
    module = _import(module_name, lambda: importlib.import_module(module_name), entry_point)
    create = get_entry_point(module, qualified_name, entry_point)
    return Source(entry_point, create, _installed_locations(module, create))


def load_archived(entry_point: str, folder: Path, roots: list[str], digest: str) -> Source:
    """Load an entry point from an extracted archive."""
    importer = PrivateImporter(f"archive_{digest[:16]}", folder, roots).install()
    module_name, _, qualified_name = entry_point.partition(":")
    module = _import(module_name, lambda: importer.load(module_name), entry_point)
    create = get_entry_point(module, qualified_name, entry_point)
    return Source(entry_point, create, {root: locate(folder, root) for root in roots})


def locate(folder: Path, root: str) -> Path:
    """Where a dotted name lies below an extracted archive."""
    *parents, last = root.split(".")
    found = find_module(folder.joinpath(*parents), last)
    if found is None:
        raise ArtifactError(f"{folder} holds no module {root!r}; take the snapshot again")
    return found


def _load_from_folder(entry_point: str, module_name: str, qualified_name: str, folder: Path) -> Source:
    if not folder.is_dir():
        raise ConfigError(f"environment.path {folder} is not a folder; name the one that holds {module_name!r}")
    top = module_name.partition(".")[0]
    if find_module(folder, top) is None:
        raise ConfigError(f"{folder} holds no module {top!r}, which the entry point {entry_point!r} needs")
    roots = _closure(folder, top)
    locations = {root: locate(folder, root) for root in roots}
    digest = sha256(build_archive(locations))
    # The key holds the folder too, so that data files are read from where this user's code lies.
    key = f"folder_{sha256(str(folder.resolve()).encode())[:8]}_{digest[:16]}"
    importer = PrivateImporter(key, folder, roots).install()
    module = _import(module_name, lambda: importer.load(module_name), entry_point)
    return Source(entry_point, get_entry_point(module, qualified_name, entry_point), locations)


def _import(module_name: str, load: Callable[[], ModuleType], entry_point: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            # Box2D's and MuJoCo's C code warns while it is imported; turned into an error it kills the process.
            warnings.filterwarnings("ignore", r"builtin type \w+ has no __module__ attribute", DeprecationWarning)
            return load()
    except (ImportError, DependencyNotInstalled) as error:
        raise ConfigError(f"entry point {entry_point!r}: {error}; {install_hint(error)}") from error
    except SyntaxError as error:
        raise ConfigError(f"entry point {entry_point!r}: {error.filename}, line {error.lineno}: {error.msg}") from error


def install_hint(error: Exception) -> str:
    """How to get what an import missed."""
    cause = error if isinstance(error, ImportError) else error.__cause__
    missing = (getattr(cause, "name", None) or "").partition(".")[0]
    extra = _EXTRAS.get(missing) or next((_EXTRAS[name] for name in _EXTRAS if name in str(error)), None)
    if extra is not None:
        return f"install the extra: pip install 'loomrl[{extra}]'"
    return f"install the package that holds {missing or 'it'!r}, or name its folder in `environment.path`"


def _closure(folder: Path, top: str) -> list[str]:
    """`top` and the modules beside it that its code imports, directly or not, also inside functions."""
    roots, waiting = [top], [top]
    while waiting:
        for name in sorted(_top_level_imports(locate(folder, waiting.pop()))):
            if name not in roots and find_module(folder, name) is not None:
                roots.append(name)
                waiting.append(name)
    return [top, *sorted(roots[1:])]


def _top_level_imports(location: Path) -> set[str]:
    return {name.partition(".")[0] for path in python_files(location) for name in imported_names(path)}


def python_files(location: Path) -> list[Path]:
    """The Python files of a package folder or of a module."""
    return [path for path, _ in _members(location, "") if path.suffix == ".py"]


def imported_names(path: Path) -> Iterator[str]:
    """Absolute names a file imports, anywhere in it. A file that does not parse imports nothing."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def parse(path: Path) -> ast.Module:
    """A file's syntax tree; empty where it is not valid Python, as template files are."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _installed_locations(module: ModuleType, create: Callable[..., Any]) -> dict[str, Path]:
    """The entry point's root, then those of its base classes."""
    names = [module.__name__, *(base.__module__ for base in getattr(create, "__mro__", ()))]
    roots = dict.fromkeys(root for root in map(_root_of, names) if root is not None)
    locations = {root: location for root in roots if (location := _location(root)) is not None}
    if not locations:
        raise ConfigError(f"module {module.__name__!r} has no source file; put the environment into a file or package")
    return locations


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


def _location(root: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(root)
    except ValueError:
        return None  # __main__, as in a notebook
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def is_installed(location: Path) -> bool:
    """Whether a location lies in the interpreter's site-packages."""
    packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return any(parent in packages for parent in location.resolve().parents)


def _members(location: Path, root: str) -> Iterator[tuple[Path, str]]:
    """Files of a root with their names in the archive, sorted."""
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


def build_archive(locations: dict[str, Path]) -> bytes:
    """An uncompressed tar of all roots; equal content gives equal bytes, wherever and whenever it is built.

    Raises:
        ConfigError: when there is more than a source archive should hold.
    """
    members = sorted((name, path) for root, location in locations.items() for path, name in _members(location, root))
    total = sum(path.stat().st_size for _, path in members)
    if total > _MAX_BYTES:
        raise ConfigError(
            f"{', '.join(locations)} hold {total / 2**20:.0f} MiB, a source archive at most {_MAX_BYTES / 2**20:.0f}; "
            "move the environment into a package of its own, without data sets and results"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in dict(members).items():
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def extract_archive(archive: bytes, digest: str, roots: Iterable[str], folder: Path) -> Path:
    """Put an archive's content at `folder`; what lies there already is used only if it is exactly that.

    Raises:
        ArtifactError: when the archive is not the one with this digest, or cannot be written.
    """
    if sha256(archive) != digest:
        raise ArtifactError(f"source archive has SHA-256 {sha256(archive)}, recorded is {digest}; restore the snapshot")
    roots = list(roots)
    if folder.is_dir() and _digest_extracted(folder, roots) == digest:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".source.", dir=folder.parent))
    except OSError as error:
        raise ArtifactError(f"cannot extract a source archive to {folder}: {error.strerror}") from error
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            content.extractall(temporary, filter="data")
        if _digest_extracted(temporary, roots) != digest:
            raise ArtifactError(f"{temporary}: extracted source differs from its archive; check the disk")
        _replace_folder(temporary, folder, roots, digest)
    except (tarfile.TarError, OSError) as error:
        raise ArtifactError(f"cannot extract the source archive to {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _replace_folder(temporary: Path, folder: Path, roots: list[str], digest: str) -> None:
    """Move into place; another process may have been faster with the same content."""
    try:
        os.replace(temporary, folder)
    except OSError:
        if _digest_extracted(folder, roots) == digest:
            return
        shutil.rmtree(folder)
        os.replace(temporary, folder)


def _digest_extracted(folder: Path, roots: list[str]) -> str | None:
    try:
        return sha256(build_archive({root: locate(folder, root) for root in roots}))
    except ArtifactError:
        return None

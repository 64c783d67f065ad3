"""An environment's source: archiving it to the byte, restoring it, loading its entry point."""

import importlib
import io
import os
import shutil
import tarfile
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.envs.registration import registry
from gymnasium.error import DependencyNotInstalled

from loomrl.environment.sources.importer import PREFIX, PrivateImporter, find_module, get_entry_point, public_names
from loomrl.environment.sources.roots import closure, files_of, installed_locations, locate
from loomrl.errors import ArtifactError, ConfigError, LoomRLError
from loomrl.system.files import sha256, tighten
from loomrl.system.home import inside

ARCHIVE = "source.tar"
_MAX_BYTES = 256 * 2**20
_EXTRAS = {"Box2D": "box2d", "pygame": "box2d", "mujoco": "mujoco", "imageio": "mujoco"}


@dataclass(frozen=True)
class EnvironmentSource:
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


def load_source(entry_point: str, folder: Path | None = None) -> EnvironmentSource:
    """Load an entry point `module:Class`: from `folder`, under an alias of its own, or as Python finds it.

    Raises:
        ConfigError: when the entry point cannot be imported; names the cause and the fix.
    """
    module_name, _, qualified_name = entry_point.partition(":")
    if not module_name or not qualified_name:
        raise ConfigError(f"entry point {entry_point!r} must be written `module:Class`")
    if folder is not None:
        return _load_from_folder(entry_point, module_name, folder)
    module = _import(module_name, lambda: importlib.import_module(module_name), entry_point)
    create = get_entry_point(module, qualified_name, entry_point)
    return EnvironmentSource(entry_point, create, installed_locations(module, create))


def run_archive(entry_point: str, archive: bytes, digest: str, roots: list[str]) -> EnvironmentSource:
    """Load an entry point from an archive, extracted below the home under its digest.

    Raises:
        ArtifactError: when it is not the one with this digest, or cannot be extracted.
        ConfigError: when the entry point cannot be imported from it.
    """
    folder = extract_archive(archive, digest, roots, inside("sources", digest))
    return load_archived(entry_point, folder, roots, digest)


def load_archived(entry_point: str, folder: Path, roots: list[str], digest: str) -> EnvironmentSource:
    """Load an entry point from an extracted archive, whose SHA-256 keeps its modules apart from those of others.

    Raises:
        ArtifactError: when `folder` lacks one of the `roots`.
        ConfigError: when the entry point cannot be imported from it.
    """
    importer = PrivateImporter(f"archive_{digest[:16]}", folder, roots)
    return _load_privately(entry_point, importer, {root: locate(folder, root) for root in roots})


def _load_from_folder(entry_point: str, module_name: str, folder: Path) -> EnvironmentSource:
    if not folder.is_dir():
        raise ConfigError(f"environment.path {folder} is not a folder; name the one that holds {module_name!r}")
    top = module_name.partition(".")[0]
    if find_module(folder, top) is None:
        raise ConfigError(f"{folder} holds no module {top!r}, which the entry point {entry_point!r} needs")
    roots = closure(folder, top)
    locations = {root: locate(folder, root) for root in roots}
    digest = sha256(build_archive(locations))
    # The key holds the folder too, so that data files are read from where this user's code lies.
    key = f"folder_{sha256(str(folder.resolve()).encode())[:8]}_{digest[:16]}"
    return _load_privately(entry_point, PrivateImporter(key, folder, roots), locations)


def _import(module_name: str, load: Callable[[], ModuleType], entry_point: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            # Box2D's and MuJoCo's C code warns while it is imported; turned into an error it kills the process.
            warnings.filterwarnings("ignore", r"builtin type \w+ has no __module__ attribute", DeprecationWarning)
            return load()
    except LoomRLError:
        raise
    except (ImportError, DependencyNotInstalled) as error:
        raise ConfigError(f"entry point {entry_point!r}: {public_names(error)}; {install_hint(error)}") from error
    except SyntaxError as error:
        raise ConfigError(f"entry point {entry_point!r}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"entry point {entry_point!r}: importing {module_name!r} raised {type(error).__name__}: "
            f"{public_names(error)} ({place.filename}, line {place.lineno}); mend the module"
        ) from error


def _load_privately(entry_point: str, importer: PrivateImporter, locations: dict[str, Path]) -> EnvironmentSource:
    """An id the module registers with Gymnasium stays whose it was, if it was somebody's."""
    importer, before = importer.install(), dict(registry)
    module_name, _, qualified_name = entry_point.partition(":")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Overriding environment", UserWarning)
            module = _import(module_name, lambda: importer.load(module_name), entry_point)
    finally:
        registry.update(before)
    return EnvironmentSource(entry_point, get_entry_point(module, qualified_name, entry_point), locations)


def install_hint(error: Exception) -> str:
    """How to get what an import missed: half a sentence for a message, with the command where it is known."""
    cause = error if isinstance(error, ImportError) else error.__cause__
    missing = (getattr(cause, "name", None) or "").partition(".")[0]
    if missing.startswith(PREFIX):
        return "a module of the code itself is missing; put its file beside the others"
    extra = _EXTRAS.get(missing) or next((_EXTRAS[name] for name in _EXTRAS if name in str(error)), None)
    if extra is not None:
        return f"install the extra: pip install 'loomrl[{extra}]'"
    return f"install the package that holds {missing or 'it'!r}, or name its folder in `environment.path`"


def build_archive(locations: dict[str, Path]) -> bytes:
    """An uncompressed tar of all roots; equal content gives equal bytes, wherever and whenever it is built.

    Raises:
        ConfigError: when there is more than a source archive should hold.
    """
    members = sorted((name, path) for root, location in locations.items() for path, name in files_of(location, root))
    total = sum(path.stat().st_size for _, path in members)
    if total > _MAX_BYTES:
        raise ConfigError(
            f"{', '.join(locations)} hold {total / 2**20:.0f} MiB, a source archive at most {_MAX_BYTES / 2**20:.0f}; "
            "move the environment into a package of its own, without data sets and results"
        )
    return tar_of(members)


def tar_of(members: Iterable[tuple[str, Path]]) -> bytes:
    """An uncompressed tar of files, each a name in it and a path, in this order; nothing else of a file is kept."""
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

    Returns `folder`.

    Raises:
        ArtifactError: when the archive is not the one with this digest, or cannot be written.
    """
    if sha256(archive) != digest:
        raise ArtifactError(f"source archive has SHA-256 {sha256(archive)}, recorded is {digest}; restore the snapshot")
    roots = list(roots)
    if folder.is_dir() and _digest_extracted(folder, roots) == digest:
        _tighten(folder)
        return folder
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".source.", dir=folder.parent))
    except OSError as error:
        raise ArtifactError(f"cannot extract a source archive to {folder}: {error.strerror}") from error
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            _extract(content, temporary)
        _tighten(temporary)
        if _digest_extracted(temporary, roots) != digest:
            raise ArtifactError(f"{temporary}: extracted source differs from its archive; check the disk")
        _replace_folder(temporary, folder, roots, digest)
    except (tarfile.TarError, OSError) as error:
        raise ArtifactError(f"cannot extract the source archive to {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Plain files below `folder`, nothing else: `extractall` can refuse the rest from Python 3.11.4 on only."""
    for member in archive:
        place = Path(os.path.normpath(folder / member.name))
        content = archive.extractfile(member) if member.isreg() else None
        if content is None or not place.is_relative_to(folder):
            raise tarfile.TarError(f"{member.name!r} is no file of the archive's folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.read())


def _tighten(folder: Path) -> None:
    """A user's code is nobody else's to read."""
    for place in (folder.parent, folder, *folder.rglob("*")):
        tighten(place)


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

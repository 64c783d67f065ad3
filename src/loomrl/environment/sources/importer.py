"""Private imports: two versions of one package side by side in one process.

Code below a folder is imported under an alias, `_loomrl_<key>.<its own name>`, so it never meets a module of the
same name from elsewhere. Each of its modules gets an `__import__` of its own, which sends the names that the folder
holds to the alias and all others to the interpreter. So absolute, relative and late imports inside the code
stay inside its version, in every thread, and `sys.modules` never changes for anybody else. Not redirected are
names handed to `importlib.import_module` at run time.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from loomrl.errors import ConfigError

PREFIX = "_loomrl_"


class PrivateImporter(importlib.abc.MetaPathFinder):
    """Imports the modules named in `roots` from one folder under an alias.

    `roots` are dotted names; `gymnasium.envs.classic_control` lies at `folder/gymnasium/envs/classic_control`. `key`
    makes the alias, and belongs to one content of the folder.
    """

    def __init__(self, key: str, folder: Path, roots: Sequence[str]) -> None:
        self.alias = PREFIX + key
        self.folder = folder
        self.roots = tuple(roots)

    def install(self) -> "PrivateImporter":
        """Make the alias importable; returns the importer that serves it, which may be an earlier equal one."""
        for finder in sys.meta_path:
            if isinstance(finder, PrivateImporter) and finder.alias == self.alias:
                if not finder.folder.is_dir():
                    finder.folder = self.folder  # equal content: the key is a digest of it
                return finder
        namespace = sys.modules[self.alias] = ModuleType(
            self.alias, "Modules of one version of an environment's source."
        )
        namespace.__path__ = []
        sys.meta_path.insert(0, self)
        return self

    def load(self, name: str) -> ModuleType:
        """Import module `name` from the folder, under an alias that keeps it apart from others of its name.

        Raises:
            ModuleNotFoundError: when the folder's roots have no such module. What the module raises is passed on.
        """
        return importlib.import_module(f"{self.alias}.{name}")

    def holds(self, name: str) -> bool:
        """Whether module `name` must come from this folder."""
        return any(name == root or name.startswith(root + ".") for root in self.roots)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> importlib.machinery.ModuleSpec | None:
        """Find modules below the alias; packages above a root are empty namespaces. None for all other names."""
        if not fullname.startswith(self.alias + "."):
            return None
        name = fullname[len(self.alias) + 1 :]
        if any(root.startswith(name + ".") for root in self.roots):
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        if not self.holds(name):
            return None
        parent = self.folder.joinpath(*name.split(".")[:-1])
        spec = importlib.machinery.PathFinder.find_spec(fullname, [str(parent)])
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self)
        return spec

    def import_(
        self,
        name: str,
        globals_: Mapping[str, Any] | None = None,
        locals_: Mapping[str, Any] | None = None,  # noqa: ARG002 - the signature of `builtins.__import__`
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as `builtins.__import__` does, for the modules of this folder."""
        if level:
            package = str((globals_ or {}).get("__package__") or "")
            name = importlib.util.resolve_name("." * level + name, package).removeprefix(self.alias).removeprefix(".")
        if not self.holds(name):
            return importlib.import_module(name) if level and fromlist else __import__(name, None, None, fromlist or ())
        module = self.load(name)
        if not fromlist:
            return sys.modules[f"{self.alias}.{name.partition('.')[0]}"]
        for item in fromlist:
            if item == "*":
                for public in getattr(module, "__all__", ()):
                    self._import_submodule(module, name, public)
            else:
                self._import_submodule(module, name, item)
        return module

    def _import_submodule(self, module: ModuleType, name: str, item: str) -> None:
        if hasattr(module, item) or not hasattr(module, "__path__"):
            return
        try:
            self.load(f"{name}.{item}")
        except ModuleNotFoundError as error:
            if error.name != f"{self.alias}.{name}.{item}":
                raise


def public_names(text: object) -> str:
    """A message as the user's own names would have it, without aliases."""
    return re.sub(rf"\b{PREFIX}\w+\.", "", str(text))


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module with the importer's own `__import__`; writes no bytecode into the source."""

    def __init__(self, fullname: str, path: str, importer: PrivateImporter) -> None:
        super().__init__(fullname, path)
        self._importer = importer

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._importer.import_}
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing: bytecode beside the source would change the folder its digest is taken of."""

    def get_code(self, fullname: str) -> Any:
        """Compile from source always: stale bytecode of an equal time stamp must not run in its place."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def find_module(folder: Path, name: str) -> Path | None:
    """The package folder or module file called `name` directly below `folder`; None where there is neither, or a folder
    without a Python file."""
    if (folder / name).is_dir() and not name.startswith("."):
        package = folder / name
        return package if any(package.rglob("*.py")) else None
    file = folder / f"{name}.py"
    return file if file.is_file() else None


def get_entry_point(module: ModuleType, qualified_name: str, entry_point: str) -> Any:
    """The callable an entry point names inside its module.

    Raises:
        ConfigError: when the module has no such name, or something there that cannot be called.
    """
    value: Any = module
    for part in qualified_name.split("."):
        if not hasattr(value, part):
            public = sorted(name for name, item in vars(module).items() if isinstance(item, type))
            raise ConfigError(
                f"entry point {entry_point!r}: module has no {qualified_name!r}; its classes: {', '.join(public)}"
            )
        value = getattr(value, part)
    if not callable(value):
        raise ConfigError(f"entry point {entry_point!r} names a {type(value).__name__}, not a class or function")
    return value

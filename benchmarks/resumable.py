"""Results of long proofs, kept in one JSON file: what was made is not made again, unless code it depends on changed.

    store = Store(path, root)
    figures = store.made("cartpole/seed 3", ["src/loomrl/statistics/betting.py", "benchmarks/calibration"], measure)

Each result stands under a key, with a SHA-256 digest of the files it depends on, which stand once under `inputs`. Of a
Python file its code counts: other comments, docstrings and spaces make no other result. The file is written after each
result, so a run that is killed goes on where it was; `keep` drops the results of keys that are no more.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from loomrl.system.files import canonical_json, sha256, sha256_file, write_json

_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Store:
    """Of one file; `root` is the folder that the names of sources are relative to."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        kept = json.loads(path.read_text()) if path.exists() else {}
        self._inputs: dict[str, dict[str, str]] = kept.get("inputs", {})
        self._results: dict[str, dict[str, Any]] = kept.get("results", {})
        self._digests: dict[tuple[str, ...], str] = {}
        self._of_files: dict[Path, str] = {}  # many results share most of their sources

    def made(self, key: str, sources: Sequence[str], make: Callable[[], Any]) -> Any:
        """The result of this key: the kept one while all sources are what they were, else what `make` returns."""
        if not self.is_current(key, sources):
            self.put(key, sources, make())
        return self._results[key]["value"]

    def is_current(self, key: str, sources: Sequence[str]) -> bool:
        """Whether a result is kept that was made from these files as they are now."""
        return key in self._results and self._results[key]["inputs"] == self.digest(sources)

    def put(self, key: str, sources: Sequence[str], value: Any) -> None:
        """Keep a result, which JSON can hold, and write the file."""
        self._results[key] = {"inputs": self.digest(sources), "value": value}
        self._write()

    def keep(self, keys: Iterable[str]) -> None:
        """Drop all results but these."""
        wanted = set(keys)
        if set(self._results) - wanted:
            self._results = {key: one for key, one in self._results.items() if key in wanted}
            self._write()

    def values(self) -> dict[str, Any]:
        """All results by their keys, whatever they were made from."""
        return {key: one["value"] for key, one in self._results.items()}

    def digest(self, sources: Sequence[str]) -> str:
        """Of what these files, and the Python files in these folders, say; read once in the life of this object."""
        names = tuple(sources)
        if names not in self._digests:
            files = {str(path.relative_to(self.root)): self._of_file(path) for path in self._files(names)}
            self._digests[names] = sha256(canonical_json(files))
            self._inputs[self._digests[names]] = files
        return self._digests[names]

    def _of_file(self, path: Path) -> str:
        if path not in self._of_files:
            self._of_files[path] = _digest(path)
        return self._of_files[path]

    def _files(self, names: Iterable[str]) -> Iterator[Path]:
        for name in names:
            path = self.root / name
            yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]

    def _write(self) -> None:
        used = {one["inputs"] for one in self._results.values()}
        inputs = {digest: files for digest, files in self._inputs.items() if digest in used}
        write_json(self.path, {"inputs": inputs, "results": self._results})


def _digest(path: Path) -> str:
    return sha256(canonical_json(syntax_of(path))) if path.suffix == ".py" else sha256_file(path)


def syntax_of(path: Path) -> Any:
    """The syntax tree of a Python file, without its docstrings, as JSON that is the same in every Python version.

    Raises:
        SyntaxError: when it is none.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return _plain(tree)


def _plain(node: Any) -> Any:
    """What is absent or empty is left out: later versions of Python have more such fields."""
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value is not None and value != []}
        return {type(node).__name__: fields}
    return [_plain(one) for one in node] if isinstance(node, list) else repr(node)

"""What a Python file imports, read from its source."""

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_IMPORTERS = {"import_module", "__import__", "resolve_name"}  # of importlib, Python itself and pkgutil


def parse(path: Path) -> ast.Module:
    """A file's syntax tree; empty where it is not valid Python, as template files are."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def package_of(path: Path, module: str) -> str:
    """The package that relative imports in a module's file start from: its `__package__`."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def imports_of(path: Path) -> Iterator[str]:
    """Absolute names a file imports, anywhere in it. A file that does not parse imports nothing."""
    return imported_names(ast.walk(parse(path)))


def imported_names(nodes: Iterable[ast.AST], package: str = "") -> Iterator[str]:
    """What the imports among syntax nodes name: `a.b` of `from a import b`, whatever `b` is. Relative ones are made
    absolute where the `package` of their file is given, else left out."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (base := _absolute("." * node.level + (node.module or ""), package)):
            yield from (f"{base}.{alias.name}" for alias in node.names)


def literal_imports(nodes: Iterable[ast.AST], module: str = "", package: str = "") -> Iterator[str]:
    """What calls of `import_module`, `__import__` and `resolve_name` among a file's syntax nodes name, under whichever
    name they are called: text that stands there, or that is assigned to a name which stands there. A relative one
    counts where its package is known so too; `__name__` and `__package__` are the `module` and `package` given."""
    nodes = list(nodes)
    assigned = [(name, value) for name, value in _assignments(nodes) if name]
    importers = _IMPORTERS | {name for name, value in assigned if _last_part(value) in _IMPORTERS}
    texts = {"__name__": {module}, "__package__": {package}}
    for name, value in assigned:
        texts.setdefault(name, set()).update(_texts(value, {}))
    for node in nodes:
        if isinstance(node, ast.Call) and _last_part(node.func) in importers:
            yield from filter(None, _named_in(node, texts))


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Names with what is assigned to each, "" for what has none, as under a key; an import under another name assigns
    as well."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((_last_part(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield _last_part(node.target), node.value
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname, ast.Name(alias.name)) for alias in node.names if alias.asname)


def _named_in(call: ast.Call, texts: Mapping[str, set[str]]) -> Iterator[str]:
    given = {"name": call.args[:1], "package": call.args[1:2]}
    given |= {keyword.arg: [keyword.value] for keyword in call.keywords if keyword.arg is not None}
    names, packages = ([text for node in given[key] for text in _texts(node, texts)] for key in ("name", "package"))
    for name in names:
        module = name.partition(":")[0]  # `module:attribute`
        yield from (_absolute(module, package) for package in (packages if module.startswith(".") else [""]))


def _texts(node: ast.expr, known: Mapping[str, set[str]]) -> set[str]:
    """What an expression may be: its own text, or those that `known` has for its name."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    return known.get(_last_part(node), set())


def _last_part(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return ""  # no package, or none that many levels up

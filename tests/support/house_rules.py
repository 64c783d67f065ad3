"""What `ls` and `grep` rely on in src/loomrl, checked by `make check`:

- no folder shows more than 22 entries;
- the name of a public class stands once (an alias such as a plug-in's `Config` is no class);
- a public docstring has five words or more, so that it can be understood alone;
- words that were ours alone are no names of classes, functions or attributes.

    python tests/support/house_rules.py        # names each place, and ends with 1 where there is one
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "loomrl"
MOST_ENTRIES = 22
LEAST_WORDS = 5
_WORDS = """
Asks Question Mandate Parts Reins Several Siblings Place Desk News Crew Site Workplace Peers Alone Surroundings
Narrator Orders Deal Stretch Windfalls came_of_it bury tend house learnt _valued _worth join_gradient
"""
OURS_ALONE = frozenset(_WORDS.split())
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def problems(source: Path = SOURCE) -> list[str]:
    """One line for each place that breaks a rule, by path."""
    modules = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    found = [*_crowded(source)]
    classes = defaultdict[str, list[str]](list)
    for path, module in modules.items():
        place = str(path.relative_to(source))
        for name, definition in _definitions(module):
            if isinstance(definition, ast.ClassDef) and "." not in name and not name.startswith("_"):
                classes[name].append(place)
            found += [f"{place}:{definition.lineno}: {one}" for one in _wrong_with(name, definition)]
    found += [f"class {name} stands in {', '.join(places)}" for name, places in classes.items() if len(places) > 1]
    return found


def _crowded(source: Path) -> Iterator[str]:
    for folder in (source, *(path for path in source.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        entries = [path for path in folder.iterdir() if path.name != "__pycache__"]
        if len(entries) > MOST_ENTRIES:
            yield f"{folder.name}: {len(entries)} entries, at most {MOST_ENTRIES} can be seen at a glance"


def _definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions and classes of a module, and those in its classes, by their names with dots."""
    for child in node.body:
        if isinstance(child, Definition):
            yield f"{prefix}{child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")


def _wrong_with(name: str, definition: Definition) -> Iterator[str]:
    if definition.name in OURS_ALONE:
        yield f"{name}: use the field's word, see docs/architecture.md"
    if isinstance(definition, ast.ClassDef):
        targets = [one.target for one in definition.body if isinstance(one, ast.AnnAssign)]
        fields = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (f"{name}.{field}: use the field's word" for field in fields if field in OURS_ALONE)
    is_public = not any(part.startswith("_") for part in name.split("."))
    docstring = ast.get_docstring(definition)
    if is_public and docstring is not None and len(docstring.split()) < LEAST_WORDS:
        yield f"{name}: {docstring!r} says too little; say what comes back, its shape, unit and errors"


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or f"{SOURCE.name}: rooms, class names, docstrings and words are as they should be")
    sys.exit(bool(lines))

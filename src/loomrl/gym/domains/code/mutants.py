"""Programs with one thing changed: what a debugger mends and a reviewer finds."""

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from loomrl.gym.domains.code.algorithms import Arguments, CodeAlgorithm

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.Gt: ast.GtE,
    ast.Lt: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OTHER_NAMES = {"max": "min", "min": "max", "bisect_left": "bisect_right", "bisect_right": "bisect_left"}


class Mutant(NamedTuple):
    """A changed program, and the number of the line that differs, from 1."""

    source: str
    line: int


def tidy(source: str) -> str:
    """The program as Python writes it, so that a mutant differs by what was changed alone."""
    return ast.unparse(ast.parse(source)) + "\n"


def wrong_mutants(algorithm: CodeAlgorithm, cases: list[Arguments], expected: list[Any]) -> list[Mutant]:
    """All programs with one change that give other results on some of the cases, in the order of the program."""
    original = tidy(algorithm.source)
    found = {}
    for source in _changed(original):
        lines = [place for place, pair in enumerate(zip(original.split("\n"), source.split("\n"), strict=True), 1)
                 if pair[0] != pair[1]]  # fmt: skip
        if len(lines) == 1 and results(source, algorithm.name, cases) != expected:
            found[source] = Mutant(source, lines[0])
    return list(found.values())


def results(source: str, name: str, cases: list[Arguments]) -> list[Any]:
    """What one of our own programs returns; never for those of strangers. A case that raises gives
    {"raised": NAME} of the error."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "reference", "exec"), namespace)  # shipped with this package, not an answer
    return [_result(namespace[name], case) for case in cases]


def _result(function: Any, case: Arguments) -> Any:
    try:
        return function(*copy.deepcopy(case))
    except Exception as error:  # noqa: BLE001 - a mutant may raise anything, and that is its answer
        return {"raised": type(error).__name__}


def _changed(source: str) -> Iterator[str]:
    for place in range(len(list(ast.walk(ast.parse(source))))):
        tree = ast.parse(source)
        if _change(list(ast.walk(tree))[place]):
            yield ast.unparse(tree) + "\n"


def _change(node: ast.AST) -> bool:
    """Change a node in place, if it is of those that can be changed."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += 1
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        node.ops[0] = _OTHER[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OTHER:
        node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Name) and node.id in _OTHER_NAMES:
        node.id = _OTHER_NAMES[node.id]
    else:
        return False
    return True

"""Judging a program: what it returns, whether it is fast enough, how it reads.

The sandbox gets inputs and never the results that are expected, which are compared outside it: a program that reads
everything around it, or writes what it likes, still has to know the answer.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from loomrl.gym.domains.code.algorithms import Arguments, CodeAlgorithm
from loomrl.gym.domains.code.mutants import results
from loomrl.gym.domains.code.sandbox import run

MAX_CHARACTERS = 4_000
NUM_SMALL, NUM_LARGE = 24, 2
_FENCED = re.compile(r"\s*```(?:python)?\n(.*?)```\s*", re.DOTALL)
# Runs in the sandbox alone, where a stranger's program may be executed: see `sandbox`.
_HARNESS = """
import io, json, os, resource, sys
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # each process would have processor time of its own
request = json.load(sys.stdin)
written = os.fdopen(os.dup(1), "w")
sys.stdout = io.StringIO()
sys.set_int_max_str_digits(100_000)
namespace = {"__name__": "solution"}
exec(compile(request["source"], "solution", "exec"), namespace)  # an answer: this whole text runs in the sandbox
for case in request["cases"]:
    try:
        line = json.dumps(namespace[request["name"]](*case))
    except Exception as error:
        line = json.dumps({"raised": type(error).__name__})
    written.write(line + "\\n")
    written.flush()
"""


class Cases:
    """Inputs of an algorithm, equal for equal seeds: `small` ones, the results `expected` of them, and large ones."""

    def __init__(self, algorithm: CodeAlgorithm, seed: int) -> None:
        self._algorithm, self._rng = algorithm, np.random.default_rng(seed)
        self.small = [algorithm.small(self._rng) for _ in range(NUM_SMALL)]
        self.expected = results(algorithm.source, algorithm.name, self.small)

    def large(self) -> list[Arguments]:
        """Arguments of calls on which a naive program runs out of time, other ones at each call; none of some
        algorithms."""
        make = self._algorithm.large
        return [] if make is None else [make(self._rng) for _ in range(NUM_LARGE)]


def judge(answer: str, algorithm: CodeAlgorithm, tests: Cases) -> dict[str, float] | None:
    """`working`, `efficient` and `readable`, 0 to 1 each, or None for what is no working program.

    Raises:
        ServiceError: where there is no sandbox.
    """
    source = extract(answer)
    tree = None if source is None else _parsed(source)
    if source is None or tree is None or not _defines(tree, algorithm.name):
        return None
    large = tests.large()
    lines = _outputs(source, algorithm.name, [*tests.small, *large])
    if not _agree(lines[:NUM_SMALL], tests.expected):
        return None
    fast = _agree(lines[NUM_SMALL:], results(algorithm.source, algorithm.name, large))
    return {"working": 1.0, "efficient": float(fast), "readable": readability(tree, source)}


def _agree(lines: list[str], expected: list[Any]) -> bool:
    return lines == [json.dumps(result) for result in expected]


def extract(answer: str) -> str | None:
    """The program in an answer: the answer itself, or the one fenced block it is; None for anything else."""
    if len(answer) > MAX_CHARACTERS:
        return None
    if "```" not in answer:
        return answer
    found = _FENCED.fullmatch(answer)
    return None if found is None or "```" in found.group(1) else found.group(1)


def readability(tree: ast.Module, source: str) -> float:
    """The share of checks passed, 0 to 1: short lines, short functions, shallow nesting, telling names, no `exec` and
    the like. `tree` is the syntax tree of `source`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    checks = (
        all(len(line) <= 100 for line in source.split("\n")),
        all((node.end_lineno or 0) - node.lineno < 40 for node in functions),
        _depth(tree.body) <= 5,
        sum(len(name) == 1 for name in names) <= len(names) / 2,
        not names & {"eval", "exec", "globals", "compile"},
    )
    return sum(checks) / len(checks)


def _outputs(source: str, name: str, cases: list[Arguments]) -> list[str]:
    """The lines the sandbox wrote: one for each case it came to."""
    output = run(_HARNESS, json.dumps({"source": source, "name": name, "cases": cases}).encode()).output
    return output.decode(errors="replace").split("\n")[:-1]


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(tree: ast.Module, name: str) -> bool:
    """Once: a list of several programs is no program."""
    return [getattr(node, "name", None) for node in tree.body].count(name) == 1


def _depth(body: Sequence[ast.AST]) -> int:
    """How deep blocks are nested. Expressions are not entered: they may be deeper than Python's stack."""
    depths = [1 + _depth(list(_inner(block))) for block in body if isinstance(block, ast.stmt) and list(_inner(block))]
    return max(depths, default=0)


def _inner(block: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for part in getattr(block, name, []):
            yield from part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else (part,)

"""Properties in VNN-LIB 1.0, the exchange format of neural-network verification (https://www.vnnlib.org).

A property describes what must *not* happen: inputs X in a box and outputs Y within linear limits. It is satisfiable
when such an input exists. `and` and `or` may nest, over inputs, outputs or both; the whole is brought into disjunctive
normal form, whose parts (`Case`) each have one box of inputs and one set of linear limits on outputs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError

MAX_CASES = 10_000
_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_VARIABLE = re.compile(r"^([XY])_(\d+)$")


@dataclass(frozen=True)
class Case:
    """One way to break the property: an input in [low, high] whose outputs satisfy `rows @ Y <= limits`.

    Inputs are (num_inputs,), `rows` (num_limits, num_outputs) and `limits` (num_limits,).
    """

    low: NDArray[np.float64]  # (num_inputs,)
    high: NDArray[np.float64]
    rows: NDArray[np.float64]  # (num_limits, num_outputs)
    limits: NDArray[np.float64]  # (num_limits,)


@dataclass(frozen=True)
class Property:
    """All ways to break a property; it holds where none can happen. `source` names it in messages."""

    source: str
    num_inputs: int
    num_outputs: int
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class _Symbol:
    text: str
    line: int


@dataclass(frozen=True)
class _List:
    parts: tuple["_Symbol | _List", ...]
    line: int


_Expression = _Symbol | _List


@dataclass(frozen=True)
class _Limit:
    """`sum of coefficients * variables <= bound`."""

    terms: dict[str, float]
    bound: float
    line: int


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.declared: dict[str, int] = {}

    def fail(self, line: int, problem: str) -> ArtifactError:
        return ArtifactError(f"{self.source}, line {line}: {problem}")

    # --- text -> expressions ---

    def expressions(self, text: str) -> Iterator[_List]:
        stack: list[tuple[int, list[_Expression]]] = []
        line, position = 1, 0
        for token in _TOKEN.finditer(text):
            line += text.count("\n", position, token.start())
            position = token.start()
            word = token.group()
            if word.startswith(";"):
                continue
            if word == "(":
                stack.append((line, []))
                continue
            if not stack:
                raise self.fail(line, f"found {word!r} outside of any parenthesis; an expression begins with '('")
            if word != ")":
                stack[-1][1].append(_Symbol(word, line))
                continue
            start, parts = stack.pop()
            whole = _List(tuple(parts), start)
            if stack:
                stack[-1][1].append(whole)
            else:
                yield whole
        if stack:
            raise self.fail(stack[-1][0], "this '(' is never closed; is the file cut off?")

    # --- expressions -> limits ---

    def command(self, expression: _List) -> list[list[_Limit]] | None:
        """The disjunctive normal form of an assertion; None for a declaration."""
        name = self.word(expression, 0)
        if name == "declare-const":
            self.declare(expression)
            return None
        if name != "assert" or len(expression.parts) != 2:
            raise self.fail(expression.line, f"found {name!r}; use `declare-const` or `assert` with one formula")
        return self.formula(expression.parts[1])

    def declare(self, expression: _List) -> None:
        variable = self.word(expression, 1)
        if not _VARIABLE.match(variable) or len(expression.parts) != 3 or self.word(expression, 2) != "Real":
            raise self.fail(
                expression.line, "a declaration reads `(declare-const X_0 Real)`, with X_ or Y_ and a number"
            )
        if variable in self.declared:
            raise self.fail(expression.line, f"{variable} was declared on line {self.declared[variable]} already")
        self.declared[variable] = expression.line

    def formula(self, expression: _Expression) -> list[list[_Limit]]:
        if isinstance(expression, _Symbol):
            raise self.fail(
                expression.line, f"found {expression.text!r} where a formula such as `(<= X_0 1.0)` belongs"
            )
        head, parts = self.word(expression, 0), expression.parts[1:]
        if head in ("and", "or") and not parts:
            raise self.fail(expression.line, f"this `{head}` holds no formula")
        if head == "or":
            return [case for part in parts for case in self.formula(part)]
        if head == "and":
            return self.conjunction([self.formula(part) for part in parts], expression.line)
        if head not in ("<=", ">=", "<", ">", "=") or len(parts) != 2:
            raise self.fail(
                expression.line, f"found {head!r}; a formula is `and`, `or`, or `<=`, `>=`, `=` of two terms"
            )
        if head in ("<", ">"):
            raise self.fail(expression.line, f"{head!r} is strict; VNN-LIB 1.0 knows `<=` and `>=`")
        left, right = self.term(parts[0]), self.term(parts[1])
        limits = {
            "<=": [self.at_most(left, right, expression.line)],
            ">=": [self.at_most(right, left, expression.line)],
        }
        return [limits["<="] + limits[">="] if head == "=" else limits[head]]

    def conjunction(self, formulas: list[list[list[_Limit]]], line: int) -> list[list[_Limit]]:
        size = int(np.prod([len(formula) for formula in formulas], dtype=object))
        if size > MAX_CASES:
            raise self.fail(line, f"the formula has {size} cases; at most {MAX_CASES} are taken: split the property")
        return [[limit for case in chosen for limit in case] for chosen in product(*formulas)]

    def at_most(self, left: dict[str, float], right: dict[str, float], line: int) -> _Limit:
        terms = {name: left.get(name, 0.0) - right.get(name, 0.0) for name in {*left, *right} - {""}}
        used = {name: value for name, value in terms.items() if value != 0.0}
        if not used:
            raise self.fail(line, "the comparison holds no variable")
        return _Limit(used, right.get("", 0.0) - left.get("", 0.0), line)

    def term(self, expression: _Expression) -> dict[str, float]:
        """Coefficients by variable; the constant's name is empty."""
        if isinstance(expression, _Symbol):
            return self.atom(expression)
        head, parts = self.word(expression, 0), [self.term(part) for part in expression.parts[1:]]
        if head == "+" and parts:
            return _sum(parts)
        if head == "-" and parts:
            return (
                _sum([parts[0], *(_scaled(part, -1.0) for part in parts[1:])]) if parts[1:] else _scaled(parts[0], -1)
            )
        if head == "*" and len(parts) == 2:
            for factor, other in (parts, parts[::-1]):
                if not factor.keys() - {""}:
                    return _scaled(other, factor.get("", 0.0))
            raise self.fail(expression.line, "a product of two variables is not linear")
        raise self.fail(expression.line, f"found {head!r}; a term is a number, a variable, or `+`, `-`, `*` of terms")

    def atom(self, symbol: _Symbol) -> dict[str, float]:
        if _VARIABLE.match(symbol.text):
            if symbol.text not in self.declared:
                raise self.fail(symbol.line, f"{symbol.text} is not declared; add `(declare-const {symbol.text} Real)`")
            return {symbol.text: 1.0}
        try:
            value = float(symbol.text)
        except ValueError:
            raise self.fail(symbol.line, f"{symbol.text!r} is neither a number nor a variable") from None
        if not isfinite(value):
            raise self.fail(symbol.line, f"{symbol.text} is not finite")
        return {"": value}

    def word(self, expression: _List, place: int) -> str:
        part = expression.parts[place] if place < len(expression.parts) else None
        if not isinstance(part, _Symbol):
            raise self.fail(expression.line, "this expression is not complete")
        return part.text

    # --- limits -> cases ---

    def count(self, kind: str) -> int:
        numbers = sorted(int(name[2:]) for name in self.declared if name[0] == kind)
        if not numbers or numbers != list(range(len(numbers))):
            raise ArtifactError(f"{self.source}: declare {kind}_0, {kind}_1, ... without a gap; found {numbers}")
        return len(numbers)

    def case(self, limits: list[_Limit], num_inputs: int, num_outputs: int) -> Case:
        low, high = np.full(num_inputs, -np.inf), np.full(num_inputs, np.inf)
        rows, bounds = [], []
        for limit in limits:
            kinds = {name[0] for name in limit.terms}
            if kinds == {"Y"}:
                row = np.zeros(num_outputs)
                for name, value in limit.terms.items():
                    row[int(name[2:])] = value
                rows.append(row)
                bounds.append(limit.bound)
            elif kinds == {"X"} and len(limit.terms) == 1:
                ((name, value),) = limit.terms.items()
                index, bound = int(name[2:]), limit.bound / value
                if value > 0:
                    high[index] = min(high[index], bound)
                else:
                    low[index] = max(low[index], bound)
            else:
                raise self.fail(limit.line, "a limit is on one input, or on outputs: inputs must form a box")
        for index in range(num_inputs):
            if not (isfinite(low[index]) and isfinite(high[index])):
                raise ArtifactError(f"{self.source}: X_{index} needs a lower and an upper limit")
            if low[index] > high[index]:
                raise ArtifactError(
                    f"{self.source}: the limits on X_{index} contradict each other: "
                    f"at least {low[index]:g} and at most {high[index]:g}; there is no such input"
                )
        if not rows:
            raise ArtifactError(f"{self.source}: a case says nothing of the outputs; every input would break it")
        return Case(low, high, np.array(rows), np.array(bounds))


def read_property(path: Path) -> Property:
    """Read a VNN-LIB 1.0 file.

    Raises:
        ArtifactError: naming the file and the line, when it is missing, malformed or not of this form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    return parse_property(text, str(path))


def parse_property(text: str, source: str = "property") -> Property:
    """The property in a VNN-LIB text: `read_property` for a text that is in memory.

    Raises:
        ArtifactError: naming `source` and the line, when it is malformed or not of this form.
    """
    try:
        return _parsed(text, source)
    except RecursionError as error:
        raise ArtifactError(f"{source}: formulas are nested too deep to be read") from error


def _parsed(text: str, source: str) -> Property:
    reader = _Reader(source)
    asserted = [formula for one in reader.expressions(text) if (formula := reader.command(one)) is not None]
    num_inputs, num_outputs = reader.count("X"), reader.count("Y")
    cases = reader.conjunction(asserted, 1)
    return Property(
        source, num_inputs, num_outputs, tuple(reader.case(limits, num_inputs, num_outputs) for limits in cases)
    )


def _sum(terms: list[dict[str, float]]) -> dict[str, float]:
    names = {name for term in terms for name in term}
    return {name: sum(term.get(name, 0.0) for term in terms) for name in names}


def _scaled(term: dict[str, float], factor: float) -> dict[str, float]:
    return {name: factor * value for name, value in term.items()}

"""What a text in the PRISM language says, as a tree."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from loomrl.errors import ConfigError

Names = Mapping[str, str]  # other names, by the name in the text
NO_NAMES: Names = {}
OUT_OF_SCOPE = {
    "ctmc": "a continuous-time chain",
    "stochastic": "a continuous-time chain",
    "pta": "a timed automaton",
    "smg": "a game",
    "pomdp": "a partially observable process",
}


@dataclass(frozen=True)
class Expression:
    """An operator, as the grammar names it, with its arguments: expressions, numbers or names. `line` is where it
    stands in the text, from 1; 0 is not known."""

    op: str
    args: tuple[Any, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Variable:
    """A variable from `low` to `high`; both None for a boolean. `initial` None means `low`, or false."""

    name: str
    low: Expression | None
    high: Expression | None
    initial: Expression | None
    line: int

    @property
    def is_boolean(self) -> bool:
        """Whether it is a boolean, which has no range, and not an integer."""
        return self.low is None


@dataclass(frozen=True)
class Branch:
    """One outcome of a command: its probability (None: certain) and what it assigns."""

    probability: Expression | None
    assignments: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Command:
    """What a module does where `guard` holds, together with others of the same `action` ("" is alone)."""

    action: str
    guard: Expression
    branches: tuple[Branch, ...]
    line: int


@dataclass(frozen=True)
class Module:
    """A module of a program, as it was parsed: its own variables, and the commands that may change them."""

    name: str
    variables: tuple[Variable, ...]
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class RewardItem:
    """Earned in a state where `guard` holds; with an `action`, when one so named is taken there."""

    action: str | None
    guard: Expression
    value: Expression


@dataclass(frozen=True)
class Program:
    """A PRISM model as it was parsed: its expressions are not evaluated yet."""

    kind: str  # "dtmc" or "mdp"
    constants: Mapping[str, tuple[str, Expression | None]]  # type and value
    formulas: Mapping[str, Expression]
    labels: Mapping[str, Expression]
    variables: tuple[Variable, ...]  # those of all modules, in the order they are written
    modules: tuple[Module, ...]
    rewards: Mapping[str, tuple[RewardItem, ...]]


def read_program(text: str, name: str = "model") -> Program:
    """Parse a model; `name` stands for it in messages.

    Raises:
        ConfigError: where it is no PRISM, or a part of the language that is not read here; with line and column.
    """
    first = next((line.split()[0] for line in _without_comments(text).splitlines() if line.split()), "")
    if first in OUT_OF_SCOPE:
        raise ConfigError(
            f"{name}: {first} is {OUT_OF_SCOPE[first]}; chains (dtmc) and decision processes (mdp) are read"
        )
    declarations = _parse(text, "model", name)
    try:
        return _assemble(*declarations)
    except _Twice as error:
        raise ConfigError(f"{name}: {error}") from None


def read_property(text: str) -> Expression:
    """Parse a property, for example `P<=0.01 [ F<=100 "crash" ]`.

    Raises:
        ConfigError: where it is no PCTL; with line and column.
    """
    found: Expression = _parse(text, "property", f"property {text!r}")
    return found


class _Twice(Exception):
    """Something has two definitions."""


@cache
def _parser() -> Any:
    from lark import Lark

    grammar = (Path(__file__).parent / "prism.lark").read_text()
    return Lark(grammar, parser="lalr", start=["model", "property"], maybe_placeholders=True, propagate_positions=True)


def _parse(text: str, start: str, name: str) -> Any:
    from lark import UnexpectedInput

    try:
        tree = _parser().parse(text, start=start)
    except UnexpectedInput as error:
        expected = sorted(getattr(error, "expected", None) or getattr(error, "allowed", None) or [])
        line, column = getattr(error, "line", -1), getattr(error, "column", -1)
        if getattr(getattr(error, "token", None), "type", "") == "$END" or line < 0:
            raise ConfigError(f"{name}: ends too early; expected {_terminals(expected)}") from None
        found = text.splitlines()[line - 1].strip() if text else ""
        raise ConfigError(
            f"{name}:{line}:{column}: not understood: {found!r}; expected {_terminals(expected)}"
        ) from None
    try:
        return _builder().transform(tree)
    except RecursionError:
        raise ConfigError(f"{name}: an expression nests too deeply; split it into formulas") from None


def _terminals(names: Iterable[str]) -> str:
    shown = [_TERMINALS.get(name, name.lower()) for name in names]
    return " or ".join(shown[:8]) or "something else"


_TERMINALS = {
    "ASK": "'=?'",
    "COLON": "':'",
    "COMMA": "','",
    "EQUAL": "'='",
    "ID": "a name",
    "LPAR": "'('",
    "LSQB": "'['",
    "NUMBER": "a number",
    "PRIMED": "a primed name",
    "QUOTED": 'a "label"',
    "RELATION": "'<', '<=', '>' or '>='",
    "RPAR": "')'",
    "RSQB": "']'",
    "SEMICOLON": "';'",
    "SIGN": "'+' or '-'",
    "_IFF": "'<=>'",
    "_IMPLIES": "'=>'",
    "TIMES": "'*' or '/'",
}


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("//")[0] for line in text.splitlines())


@cache
def _builder() -> Any:
    """Turns lark's tree into ours. A class made here, so that importing this module does not import lark."""
    from lark import Transformer, v_args

    @v_args(meta=True)
    class Builder(Transformer):  # type: ignore[type-arg]
        def __default__(self, data: Any, children: Any, meta: Any) -> Expression:
            args = tuple(str(child) if hasattr(child, "type") else child for child in children)
            return Expression(str(data), args, getattr(meta, "line", 0))

        def conditional(self, meta: Any, children: Any) -> Any:
            return children[0] if children[1] is None else Expression("if", tuple(children), meta.line)

        def binary(self, meta: Any, children: Any) -> Expression:
            left, op, right = children
            return Expression(str(op), (left, right), meta.line)

        def signed(self, meta: Any, children: Any) -> Expression:
            sign, value = children
            return Expression("minus", (value,), meta.line) if sign == "-" else value

        def number(self, meta: Any, children: Any) -> Expression:
            text = str(children[0])
            return Expression("number", (int(text) if text.isdigit() else float(text),), meta.line)

        def label_name(self, meta: Any, children: Any) -> Expression:
            return Expression("label", (_unquoted(children[0]),), meta.line)

        def property(self, _meta: Any, children: Any) -> Any:
            return children[0]

        def constant(self, _meta: Any, children: Any) -> tuple[str, str, Any]:
            kind, name, value = children
            return "constant", str(name), (str(kind or "int"), value)

        def formula(self, _meta: Any, children: Any) -> tuple[str, str, Any]:
            return "formula", str(children[0]), children[1]

        def label(self, _meta: Any, children: Any) -> tuple[str, str, Any]:
            return "label", _unquoted(children[0]), children[1]

        def variable(self, meta: Any, children: Any) -> Variable:
            name, kind, initial = children
            low, high = kind.args if kind.op == "range" else (None, None)
            return Variable(str(name), low, high, initial, meta.line)

        def assignment(self, _meta: Any, children: Any) -> tuple[str, Expression]:
            return str(children[0])[:-1], children[1]

        def certain(self, _meta: Any, children: Any) -> Branch:
            return Branch(None, _assigned(children))

        def branch(self, _meta: Any, children: Any) -> Branch:
            return Branch(children[0], _assigned(children[1:]))

        def command(self, meta: Any, children: Any) -> Command:
            action, guard, *branches = children
            return Command(str(action or ""), guard, tuple(branches), meta.line)

        def module(self, _meta: Any, children: Any) -> tuple[str, str, Module]:
            name, *parts = children
            variables = tuple(part for part in parts if isinstance(part, Variable))
            commands = tuple(part for part in parts if isinstance(part, Command))
            return "module", str(name), Module(str(name), variables, commands)

        def renaming(self, _meta: Any, children: Any) -> tuple[str, str]:
            return str(children[0]), str(children[1])

        def renamed(self, meta: Any, children: Any) -> tuple[str, str, Any]:
            name, original, *pairs = children
            return "renamed", str(name), (str(original), dict(pairs), meta.line)

        def transition(self, _meta: Any, children: Any) -> str:
            return str(children[0] or "")

        def reward(self, _meta: Any, children: Any) -> RewardItem:
            return RewardItem(*children)

        def rewards(self, _meta: Any, children: Any) -> tuple[str, str, Any]:
            name, *items = children
            return "rewards", _unquoted(name or '""'), tuple(items)

        def model(self, _meta: Any, children: Any) -> tuple[str, list[Any]]:
            kind, *declarations = children
            word = str(kind.args[0])
            return {"probabilistic": "dtmc", "nondeterministic": "mdp"}.get(word, word), declarations

    # `global` is a word of Python's: its rule gets its method here.
    setattr(Builder, "global", v_args(meta=True)(lambda _self, _meta, children: ("global", "", children[0])))
    return Builder()


def _unquoted(token: Any) -> str:
    return str(token)[1:-1]


def _assigned(children: Iterable[Any]) -> tuple[tuple[str, Expression], ...]:
    return tuple(child for child in children if isinstance(child, tuple))


def _assemble(kind: str, declarations: list[Any]) -> Program:
    found: dict[str, dict[str, Any]] = {
        what: {} for what in ("constant", "formula", "label", "module", "rewards", "variable")
    }
    for what, name, value in declarations:
        if what == "formula":  # copies of modules may use one that follows them
            _add(found, "formula", name, value)
    for what, name, value in declarations:
        if what == "formula":
            continue
        if what == "global":
            _add(found, "variable", value.name, value)
        elif what == "renamed":
            _add(found, "module", name, _renamed(name, value, found))
        else:
            _add(found, what, name, value)
        if what in ("module", "renamed"):
            for variable in found["module"][name].variables:
                _add(found, "variable", variable.name, variable)
    for name in found["variable"]:
        if name in found["constant"] or name in found["formula"]:
            raise _Twice(f"{name!r} is a variable and a constant or formula")
    return Program(
        kind,
        found["constant"],
        found["formula"],
        found["label"],
        tuple(found["variable"].values()),
        tuple(found["module"].values()),
        found["rewards"],
    )


def _add(found: dict[str, dict[str, Any]], what: str, name: str, value: Any) -> None:
    if name in found[what]:
        raise _Twice(f"{what} {name!r} is defined twice")
    found[what][name] = value


def _renamed(name: str, value: tuple[str, dict[str, str], int], found: dict[str, dict[str, Any]]) -> Module:
    """A copy of a module under other names. Formulas in it are written out, because they are renamed as well."""
    original, names, line = value
    module = found["module"].get(original)
    if module is None:
        raise _Twice(f"line {line}: module {name!r} copies {original!r}, which is not defined before it")
    for variable in module.variables:
        if variable.name not in names:
            raise _Twice(f"line {line}: module {name!r} gives {variable.name!r} of {original!r} no new name")

    def again(expression: Any) -> Any:
        return None if expression is None else written_out(expression, found["formula"], names)

    variables = tuple(
        replace(one, name=names[one.name], low=again(one.low), high=again(one.high), initial=again(one.initial))
        for one in module.variables
    )
    commands = tuple(
        Command(
            names.get(command.action, command.action),
            again(command.guard),
            tuple(
                Branch(
                    again(branch.probability),
                    tuple((names.get(to, to), again(what)) for to, what in branch.assignments),
                )
                for branch in command.branches
            ),
            command.line,
        )
        for command in module.commands
    )
    return Module(name, variables, commands)


def written_out(
    expression: Expression, formulas: Mapping[str, Expression], names: Names = NO_NAMES, within: tuple[str, ...] = ()
) -> Expression:
    """The expression with its formulas in place of their names, and all else under the names it has in `names`.

    Raises:
        ConfigError: for a formula that is defined by itself; `within` are those that it is part of.
    """
    args = expression.args
    if expression.op != "name":
        parts = (written_out(arg, formulas, names, within) if isinstance(arg, Expression) else arg for arg in args)
        return replace(expression, args=tuple(parts))
    name = args[0]
    if name in names:
        return replace(expression, args=(names[name],))
    if name in within:
        raise ConfigError(f"line {expression.line}: formula {name!r} is defined by itself")
    return written_out(formulas[name], formulas, names, (*within, name)) if name in formulas else expression

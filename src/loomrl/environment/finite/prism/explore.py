"""From a program in the PRISM language to its finite model: breadth first, all states of a front at once."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.finite.kernels import intern, rehash
from loomrl.environment.finite.model import FiniteModel, Ints, States
from loomrl.environment.finite.prism.expressions import Value, evaluate, is_boolean
from loomrl.environment.finite.prism.syntax import Branch, Command, Expression, Program, Variable, written_out
from loomrl.errors import ConfigError

_CHUNK = 65_536  # states of a front that are expanded together
_MAX_COMBINED = 100_000
_SUM = 2.0**-50  # times the number of outcomes: how far probabilities may be from 1 in sum, for rounding


def build_model(
    program: Program, constants: Mapping[str, Any] | None = None, max_states: int = 20_000_000, name: str = "model"
) -> FiniteModel:
    """All states that can be reached, with every choice there.

    A state without an enabled command stays where it is, and has the label "deadlock". In a dtmc, where several
    commands are enabled, each is as likely as the others, as PRISM has it.

    Raises:
        ConfigError: for a constant without a value, probabilities that do not sum to 1, a variable that leaves its
            range, more than `max_states` states; with the line.
    """
    try:
        return _Explorer(program, constants or {}, max_states).model()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def constant_values(program: Program, given: Mapping[str, Any]) -> dict[str, Value]:
    """The value of each constant, by name: a bool, int or float; those of `given` stand before the program's own.

    Raises:
        ConfigError: for one that has no value, one that does not exist, or a value of another type.
    """
    if unknown := sorted(given.keys() - program.constants.keys()):
        raise ConfigError(f"there is no constant {unknown[0]!r}; constants: {', '.join(program.constants) or 'none'}")
    values: dict[str, Value] = {}
    waiting: list[str] = []

    def value(name: str) -> Value:
        if name in values:
            return values[name]
        if name in waiting:
            raise ConfigError(f"constant {name!r} is defined by itself")
        kind, expression = program.constants[name]
        if name in given:
            found = given[name]
        elif expression is None:
            raise ConfigError(f"constant {name!r} has no value; give one")
        else:
            waiting.append(name)
            found = evaluate(written_out(expression, program.formulas), _Lazy(program.constants, value))
            waiting.pop()
        values[name] = _typed(name, kind, found)
        return values[name]

    for name in program.constants:
        value(name)
    return values


class _Lazy(dict[str, Any]):
    """A scope that computes a constant when it is asked for."""

    def __init__(self, names: Mapping[str, Any], value: Any) -> None:
        super().__init__(dict.fromkeys(names))
        self._value = value

    def __getitem__(self, name: str) -> Any:
        return self._value(name)


def _typed(name: str, kind: str, value: Any) -> Value:
    array = np.asarray(value)
    if kind == "bool" and array.dtype == np.bool_:
        return bool(array)
    if kind == "int" and array.dtype.kind == "i":
        return int(array)
    if kind == "double" and array.dtype.kind in "if" and math.isfinite(float(array)):
        return float(array)
    raise ConfigError(f"constant {name!r} is {value!r}; a value of type {kind} is needed")


@dataclass(frozen=True)
class _Joint:
    """Commands of one or more modules that happen together; `outcomes` are the products of their branches."""

    action: str
    guards: tuple[Expression, ...]
    outcomes: tuple[tuple[Branch, ...], ...]
    line: int


@dataclass
class _Found:
    """Transitions found so far, in lists of arrays: of one chunk of states after the other."""

    num_choices: list[Ints] = field(default_factory=list)  # of each state
    num_transitions: list[Ints] = field(default_factory=list)  # of each choice
    actions: list[Ints] = field(default_factory=list)
    columns: list[Ints] = field(default_factory=list)
    probabilities: list[NDArray[np.float64]] = field(default_factory=list)


class _Layout:
    """Variables packed into words of 64 bits."""

    def __init__(self, lows: Ints, highs: Ints) -> None:
        self.lows = lows
        bits = [max(int(high - low).bit_length(), 1) for low, high in zip(lows, highs, strict=True)]
        self.places: list[tuple[int, int, int]] = []  # word, shift, bits
        word = used = 0
        for size in bits:
            if used + size > 63:
                word, used = word + 1, 0
            self.places.append((word, used, size))
            used += size
        self.num_words = word + 1

    def pack(self, columns: list[Ints]) -> NDArray[np.uint64]:
        """(n, W) from a column (n,) for each variable."""
        words = np.zeros((len(columns[0]), self.num_words), np.uint64)
        for column, low, (word, shift, _) in zip(columns, self.lows, self.places, strict=True):
            words[:, word] |= (column - low).astype(np.uint64) << np.uint64(shift)
        return words

    def unpack(self, words: NDArray[np.uint64]) -> list[Ints]:
        """A column (n,) for each variable."""
        return [
            ((words[:, word] >> np.uint64(shift)) & np.uint64((1 << size) - 1)).astype(np.int64) + low
            for low, (word, shift, size) in zip(self.lows, self.places, strict=True)
        ]


class _Numbers:
    """Numbers of states by their words, in the order they were found."""

    def __init__(self, num_words: int) -> None:
        self.known = np.zeros((1 << 12, num_words), np.uint64)
        self.table = np.full(1 << 13, -1, np.int64)
        self.count = 0

    def of(self, words: NDArray[np.uint64]) -> Ints:
        self._make_room(self.count + len(words))
        numbers = np.empty(len(words), np.int64)
        self.count = intern(words, self.known, self.count, self.table, numbers)
        return numbers

    def _make_room(self, count: int) -> None:
        if count > len(self.known):
            grown = np.zeros((max(count, 2 * len(self.known)), self.known.shape[1]), np.uint64)
            grown[: self.count] = self.known[: self.count]
            self.known = grown
        if 2 * count > len(self.table):
            self.table = np.full(1 << (2 * count).bit_length(), -1, np.int64)
            rehash(self.known, self.count, self.table)


class _Explorer:
    def __init__(self, program: Program, constants: Mapping[str, Any], max_states: int) -> None:
        self.program, self.max_states = program, max_states
        self.constants = constant_values(program, constants)
        self.names = [variable.name for variable in program.variables]
        if not self.names:
            raise ConfigError("the model has no variables")
        ranges = [self._range(variable) for variable in program.variables]
        self.lows = np.array([low for low, _ in ranges], np.int64)
        self.highs = np.array([high for _, high in ranges], np.int64)
        self.layout = _Layout(self.lows, self.highs)
        self.joints = [self._resolved(joint) for joint in _joint_commands(program)]
        self.action_names = tuple(dict.fromkeys(joint.action for joint in self.joints)) or ("",)
        self.booleans = frozenset(variable.name for variable in program.variables if variable.is_boolean)

    def model(self) -> FiniteModel:
        numbers, found = _Numbers(self.layout.num_words), _Found()
        first = [np.array([self._initial(index)], np.int64) for index in range(len(self.names))]
        numbers.of(self.layout.pack(first))
        done = 0
        while done < numbers.count:
            until = min(done + _CHUNK, numbers.count)
            self._expand(self.layout.unpack(numbers.known[done:until]), np.arange(done, until), numbers, found)
            done = until
            if numbers.count > self.max_states:
                raise ConfigError(f"more than {self.max_states} states can be reached")
        return self._assembled(self.layout.unpack(numbers.known[: numbers.count]), found)

    def _range(self, variable: Variable) -> tuple[int, int]:
        if variable.low is None or variable.high is None:
            return 0, 1
        low, high = (self._constant_integer(bound, variable) for bound in (variable.low, variable.high))
        if low > high:
            raise ConfigError(f"line {variable.line}: {variable.name!r} has the empty range [{low}..{high}]")
        return low, high

    def _initial(self, index: int) -> int:
        variable = self.program.variables[index]
        if variable.initial is None:
            return int(self.lows[index])
        value = evaluate(self._names(variable.initial), self.constants)
        if is_boolean(value) != variable.is_boolean:
            raise ConfigError(f"line {variable.line}: {variable.name!r} starts with a value of another type")
        start = int(value) if variable.is_boolean else self._constant_integer(variable.initial, variable)
        if not self.lows[index] <= start <= self.highs[index]:
            raise ConfigError(f"line {variable.line}: {variable.name!r} starts with {start}, outside its range")
        return start

    def _constant_integer(self, expression: Expression, variable: Variable) -> int:
        value = np.asarray(evaluate(self._names(expression), self.constants))
        if value.dtype.kind != "i":
            raise ConfigError(f"line {variable.line}: {variable.name!r} needs integers, found {value}")
        return int(value)

    def _names(self, expression: Expression) -> Expression:
        return written_out(expression, self.program.formulas)

    def _resolved(self, joint: _Joint) -> _Joint:
        """With formulas written out, and every assignment to a variable that exists."""
        outcomes = []
        for outcome in joint.outcomes:
            branches, seen = [], set()
            for branch in outcome:
                for name, _ in branch.assignments:
                    if name not in self.names:
                        raise ConfigError(f"line {joint.line}: {name!r} is assigned and is no variable")
                    if name in seen:
                        raise ConfigError(f"line {joint.line}: {name!r} is assigned twice in one step")
                    seen.add(name)
                probability = None if branch.probability is None else self._names(branch.probability)
                assigned = tuple((name, self._names(value)) for name, value in branch.assignments)
                branches.append(Branch(probability, assigned))
            outcomes.append(tuple(branches))
        return _Joint(joint.action, tuple(self._names(guard) for guard in joint.guards), tuple(outcomes), joint.line)

    def _scope(self, columns: list[Ints]) -> dict[str, Value]:
        scope = dict(self.constants)
        for name, column in zip(self.names, columns, strict=True):
            scope[name] = column.astype(np.bool_) if name in self.booleans else column
        return scope

    def _expand(self, columns: list[Ints], states: Ints, numbers: _Numbers, found: _Found) -> None:
        """All transitions from some states."""
        scope, size = self._scope(columns), len(states)
        rows, orders, words, shares = [], [], [], []
        enabled = np.zeros(size, np.int64)
        for order, joint in enumerate(self.joints):
            at = np.flatnonzero(self._holds(joint, scope, size))
            if len(at) == 0:
                continue
            enabled[at] += 1
            part = [column[at] for column in columns]
            narrow = self._scope(part)
            total = np.zeros(len(at))
            for outcome in joint.outcomes:
                probability, after = self._outcome(joint, outcome, part, narrow)
                total += probability
                likely = np.flatnonzero(probability)
                rows.append(at[likely])
                orders.append(np.full(len(likely), order))
                words.append(self.layout.pack([column[likely] for column in after]))
                shares.append(probability[likely])
            self._check_total(joint, total, part)
        stuck = np.flatnonzero(enabled == 0)
        rows.append(stuck)
        orders.append(np.full(len(stuck), len(self.joints)))
        words.append(self.layout.pack([column[stuck] for column in columns]))
        shares.append(np.ones(len(stuck)))
        self._record(np.concatenate(rows), np.concatenate(orders), numbers.of(np.concatenate(words)),
                     np.concatenate(shares), enabled, found)  # fmt: skip

    def _record(
        self, rows: Ints, orders: Ints, targets: Ints, shares: NDArray[np.float64], enabled: Ints, found: _Found
    ) -> None:
        """Sort what was found by state and command, and join what leads to the same state."""
        if self.program.kind == "dtmc":  # one choice: every enabled command is as likely
            shares, orders = shares / np.maximum(enabled[rows], 1), np.zeros_like(orders)
        by = np.lexsort((targets, orders, rows))
        rows, orders, targets, shares = rows[by], orders[by], targets[by], shares[by]
        new_choice = np.ones(len(rows), np.bool_)
        new_choice[1:] = (rows[1:] != rows[:-1]) | (orders[1:] != orders[:-1])
        new_entry = new_choice.copy()
        new_entry[1:] |= targets[1:] != targets[:-1]
        starts, entries = np.flatnonzero(new_choice), np.flatnonzero(new_entry)
        found.probabilities.append(np.add.reduceat(shares, entries))
        found.columns.append(targets[entries])
        found.num_transitions.append(np.diff(np.append(np.cumsum(new_entry)[starts] - 1, len(entries))))
        numbers = np.array([self.action_names.index(joint.action) for joint in self.joints] + [0])
        found.actions.append(numbers[orders[starts]])
        found.num_choices.append(np.bincount(rows[starts], minlength=len(enabled)))

    def _holds(self, joint: _Joint, scope: dict[str, Value], size: int) -> NDArray[np.bool_]:
        held = np.ones(size, np.bool_)
        for guard in joint.guards:
            value = evaluate(guard, scope)
            if not is_boolean(value):
                raise ConfigError(f"line {joint.line}: the guard is a number")
            held &= value
        return held

    def _outcome(
        self, joint: _Joint, outcome: tuple[Branch, ...], columns: list[Ints], scope: dict[str, Value]
    ) -> tuple[NDArray[np.float64], list[Ints]]:
        """How likely an outcome is from each state, and the variables after it."""
        size = len(columns[0])
        probability = np.ones(size)
        after = list(columns)
        for branch in outcome:
            if branch.probability is not None:
                value = evaluate(branch.probability, scope)
                if is_boolean(value):
                    raise ConfigError(f"line {joint.line}: a probability is a condition")
                probability = probability * value
            for name, expression in branch.assignments:
                after[self.names.index(name)] = self._assigned(joint, name, expression, scope, probability)
        if not np.all(probability >= 0.0):  # NaN as well
            state = int(np.flatnonzero(~(probability >= 0.0))[0])
            raise ConfigError(
                f"line {joint.line}: a probability is {probability[state]} in {self._shown(columns, state)}"
            )
        return probability, after

    def _assigned(
        self,
        joint: _Joint,
        name: str,
        expression: Expression,
        scope: dict[str, Value],
        probability: NDArray[np.float64],
    ) -> Ints:
        value = np.asarray(evaluate(expression, scope))
        index = self.names.index(name)
        wanted = "b" if name in self.booleans else "i"
        if value.dtype.kind != wanted:
            raise ConfigError(f"line {joint.line}: {name!r} is assigned a value of another type")
        column = np.broadcast_to(value, probability.shape).astype(np.int64)
        outside = ((column < self.lows[index]) | (column > self.highs[index])) & (probability > 0.0)
        if outside.any():
            bad = int(column[np.flatnonzero(outside)[0]])
            raise ConfigError(
                f"line {joint.line}: {name!r} becomes {bad}, outside [{self.lows[index]}..{self.highs[index]}]"
            )
        return np.clip(column, self.lows[index], self.highs[index])

    def _check_total(self, joint: _Joint, total: NDArray[np.float64], columns: list[Ints]) -> None:
        wrong = np.flatnonzero(~(np.abs(total - 1.0) <= _SUM * (len(joint.outcomes) + 1)))
        if len(wrong):
            state = int(wrong[0])
            shown = self._shown(columns, state)
            raise ConfigError(f"line {joint.line}: probabilities sum to {total[state]:.12g} in {shown}, not to 1")

    def _shown(self, columns: list[Ints], state: int) -> str:
        return (
            "(" + ", ".join(f"{name}={column[state]}" for name, column in zip(self.names, columns, strict=True)) + ")"
        )

    def _assembled(self, columns: list[Ints], found: _Found) -> FiniteModel:
        num_choices, actions = np.concatenate(found.num_choices), np.concatenate(found.actions)
        choice_start = _starts(num_choices)
        row_start = _starts(np.concatenate(found.num_transitions))
        targets, shares = np.concatenate(found.columns), np.concatenate(found.probabilities)
        scope, size = self._scope(columns), len(columns[0])
        labels = {
            name: np.broadcast_to(np.asarray(evaluate(self._names(value), scope)), (size,)).copy()
            for name, value in self.program.labels.items()
        }
        for name, mask in labels.items():
            if mask.dtype != np.bool_:
                raise ConfigError(f'label "{name}" is a number')
        initial = np.zeros(size)
        initial[0] = 1.0
        labels["init"] = initial > 0.0
        labels["deadlock"] = self._deadlocked(scope, size)
        states = States(tuple(self.names), np.stack(columns, axis=1), self.booleans, initial, labels, self.constants)
        rewards = self._rewards(scope, size, choice_start, actions)
        return FiniteModel(states, choice_start, row_start, targets, shares, actions, self.action_names, rewards)

    def _deadlocked(self, scope: dict[str, Value], size: int) -> NDArray[np.bool_]:
        stuck = np.ones(size, np.bool_)
        for joint in self.joints:
            stuck &= ~self._holds(joint, scope, size)
        return stuck

    def _rewards(
        self, scope: dict[str, Value], size: int, choice_start: Ints, actions: Ints
    ) -> dict[str, NDArray[np.float64]]:
        """What each choice earns. In a dtmc, what an action earns is weighted with how likely it is taken."""
        owner = np.repeat(np.arange(size), np.diff(choice_start))
        enabled = {name: np.zeros(size) for name in self.action_names}
        for joint in self.joints:
            enabled[joint.action] += self._holds(joint, scope, size)
        total = np.maximum(np.sum(list(enabled.values()), axis=0), 1.0)
        rewards = {}
        for name, items in self.program.rewards.items():
            earned = np.zeros(len(actions))
            for item in items:
                gain = np.where(evaluate(self._names(item.guard), scope), evaluate(self._names(item.value), scope), 0.0)
                gain = np.broadcast_to(gain.astype(np.float64), (size,))
                if not np.isfinite(gain).all():
                    raise ConfigError(f'rewards "{name}": a reward is not finite')
                if item.action is None:
                    earned += gain[owner]
                elif item.action in enabled and self.program.kind == "dtmc":
                    earned += (gain * enabled[item.action] / total)[owner]
                elif item.action in enabled:
                    taken = (actions == self.action_names.index(item.action)) & (enabled[item.action] > 0)[owner]
                    earned += np.where(taken, gain[owner], 0.0)
            rewards[name] = earned
        return rewards


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _joint_commands(program: Program) -> list[_Joint]:
    """Commands as they happen: alone, or together with one of every other module that knows the action."""
    joints = [_joint([command]) for module in program.modules for command in module.commands if not command.action]
    actions = dict.fromkeys(
        command.action for module in program.modules for command in module.commands if command.action
    )
    for action in actions:
        by_module = [
            [command for command in module.commands if command.action == action]
            for module in program.modules
            if any(command.action == action for command in module.commands)
        ]
        if math.prod(map(len, by_module)) > _MAX_COMBINED:
            raise ConfigError(f"action {action!r}: its commands combine in more than {_MAX_COMBINED} ways")
        joints += [_joint(list(commands)) for commands in itertools.product(*by_module)]
    return joints


def _joint(commands: list[Command]) -> _Joint:
    first = commands[0]
    outcomes: Iterator[tuple[Branch, ...]] = itertools.product(*(command.branches for command in commands))
    return _Joint(first.action, tuple(command.guard for command in commands), tuple(outcomes), first.line)

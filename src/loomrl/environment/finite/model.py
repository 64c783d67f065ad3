"""A finite Markov decision process as sparse arrays, and the Markov chain that a policy makes of it.

S states, C choices, N transitions, V variables. The choices of state s are `choice_start[s]` to `choice_start[s + 1]`,
the transitions of choice c are `row_start[c]` to `row_start[c + 1]`. A chain has one row of transitions for each state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.finite.kernels import gather_rows, mark_reachable
from loomrl.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class States:
    """What the states of a model or chain are, and what is said of them."""

    variables: tuple[str, ...]
    values: Ints  # (S, V); a boolean is 0 or 1
    booleans: frozenset[str]  # which variables are booleans
    initial: Floats  # (S,): the distribution of the first state
    labels: Mapping[str, Mask]  # (S,) each
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)  # by name, for what is asked about them

    def __len__(self) -> int:
        return len(self.initial)

    def column(self, name: str) -> NDArray[Any]:
        """A variable's value in every state, (S,), bool or int64; raises `ValueError` for a variable there is not."""
        values = self.values[:, self.variables.index(name)]
        return values.astype(np.bool_) if name in self.booleans else values

    def scope(self) -> dict[str, Any]:
        """All names an expression about states may use: constants, and every variable's values, (S,)."""
        return {**self.constants, **{name: self.column(name) for name in self.variables}}

    def describe(self, state: int) -> dict[str, int | bool]:
        """The values of all variables in one state, by name."""
        return {
            name: bool(value) if name in self.booleans else int(value)
            for name, value in zip(self.variables, self.values[state], strict=True)
        }

    def with_label(self, name: str, mask: Mask) -> "States":
        """A copy of these states that has one more label: the states of `mask`, bool (S,). It takes the place of one of
        the same name."""
        return replace(self, labels={**self.labels, name: mask})

    def take(self, kept: Ints) -> "States":
        """The states of these numbers alone, (K,), in this order."""
        labels = {name: mask[kept] for name, mask in self.labels.items()}
        return replace(self, values=self.values[kept], initial=self.initial[kept], labels=labels)


@dataclass(frozen=True)
class Chain:
    """A Markov chain. `rewards` are what a step from a state earns in expectation, (S,) each."""

    states: States
    row_start: Ints  # (S + 1,)
    columns: Ints  # (N,)
    probabilities: Floats  # (N,), positive
    rewards: Mapping[str, Floats]

    def reachable(self) -> "Chain":
        """The part that can be reached from the initial states, in their order; itself where that is all of them."""
        everywhere = np.ones(len(self.states), np.bool_)
        seen = mark_reachable(self.row_start, self.columns, self.states.initial > 0.0, everywhere)
        if seen.all():
            return self
        kept = np.flatnonzero(seen)
        number = np.cumsum(seen) - 1
        row_start, entries = gather_rows(self.row_start, kept)
        rewards = {name: reward[kept] for name, reward in self.rewards.items()}
        columns = number[self.columns[entries]]
        return Chain(self.states.take(kept), row_start, columns, self.probabilities[entries], rewards)


@dataclass(frozen=True)
class FiniteModel:
    """A Markov decision process. `actions[c]` says which of `action_names` choice c is.

    `rewards` are what a choice earns in expectation, (C,) each: what its state gives, what the action gives, and what
    is expected of where it leads.
    """

    states: States
    choice_start: Ints  # (S + 1,)
    row_start: Ints  # (C + 1,)
    columns: Ints  # (N,)
    probabilities: Floats  # (N,), positive
    actions: Ints  # (C,)
    action_names: tuple[str, ...]
    rewards: Mapping[str, Floats]

    @property
    def num_choices(self) -> int:
        """The number C of choices, over all states."""
        return len(self.actions)

    def chain(self, choices: Ints) -> Chain:
        """The chain in which state s always takes choice `choices[s]`, (S,).

        Choices are counted over all states, and not checked to be those of their state.
        """
        row_start, entries = gather_rows(self.row_start, choices)
        rewards = {name: reward[choices] for name, reward in self.rewards.items()}
        return Chain(self.states, row_start, self.columns[entries], self.probabilities[entries], rewards)

    def only_chain(self) -> Chain:
        """The chain of a model that leaves no choice.

        Raises:
            ConfigError: where some state has several choices; a policy must make them.
        """
        several = np.flatnonzero(np.diff(self.choice_start) > 1)
        if len(several):
            raise ConfigError(
                f"state {self.states.describe(int(several[0]))} has "
                f"{int(np.diff(self.choice_start)[several[0]])} choices, so it is no Markov chain; a policy must choose"
            )
        return self.chain(self.choice_start[:-1])

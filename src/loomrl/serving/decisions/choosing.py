"""What is done about observations: the policy's own choice, a draw where one explores, or what a shield takes instead.

Equal questions get equal answers, bit for bit: the server decides with it, `loomrl audit recompute` asks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import PolicyOutput, ServedPolicy
from loomrl.serving.policy.shield import LOOK_UP, NotAllowed, not_allowed
from loomrl.types import FloatArray, Json

CONSTANT = "constant"  # the name of a fallback that is one action


@dataclass(frozen=True, slots=True)
class Substitute:
    """What acts where a policy must not: the greedy action of a version without memory, or one constant action."""

    policy: ServedPolicy | None = None
    action: NDArray[Any] | None = None  # (*action)

    @property
    def name(self) -> str:
        """As records name it: the version, or `constant`."""
        return CONSTANT if self.policy is None else self.policy.version

    def mark(self) -> Json:
        """What records say of it: which version, or which action."""
        if self.policy is not None:
            return {"version": self.policy.version}
        assert self.action is not None, "a substitute is a version or an action"
        return {"action": self.action.tolist()}

    def actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        """What it does after observations (B, *obs): (B, *action).

        Raises:
            NotFinite, NoState: where the version has no answer to one of them.
        """
        if self.policy is not None:
            return self.policy.answer(observations.astype(self.policy.dtype, copy=False)).action
        assert self.action is not None, "a substitute is a version or an action"
        return np.stack([self.action] * len(observations))


@dataclass(slots=True)
class Choices:
    """Decisions on B observations, column by column: actions, values, propensities, and why actions were replaced."""

    action: NDArray[Any]  # (B, *action), in the graph's dtype
    value: NDArray[Any]  # (B,)
    outputs: dict[str, NDArray[Any]]  # all that the policy's graph said
    propensity: list[float]  # of the only action there could be 1; see `loomrl.serving.policy.exploration`
    explored: list[bool]
    shield: list[Json | None]  # what was `chosen`, `by` what it was prevented, and the `fallback` that acts instead
    marks: dict[str, list[Any]] = field(default_factory=dict)  # what else records say of each, by its key


def choose(
    policy: ServedPolicy,
    observations: NDArray[Any],
    asked: Sequence[bool],
    stream: Callable[[int], np.random.Generator],
    memory: FloatArray | None = None,
    substitute: Substitute | None = None,
) -> Choices:
    """Ask the policy once about observations (B, *obs), with its memory (B, M) where it has one.

    `asked` says who asked to explore, `stream` gives the random numbers of a row that draws.

    Raises:
        NotFinite, NoState, NotAllowed: where there is no answer.
    """
    choosing = _Choosing(policy, observations, policy.answer(observations, memory), substitute)
    choices, guard, share = choosing.greedy(), policy.guard, policy.exploration.share
    barred: dict[int, str] = {}
    beyond: dict[int, str] = {}
    if guard is not None:
        covered = None if guard.certified is None else guard.certified.covers(observations)
        choices.marks |= {} if covered is None else {"certified": covered}
        barred, beyond = guard.barred(observations, covered), guard.beyond(choices.action)
    drawn = []
    if share or any(asked):
        drawn = [row for row, one in enumerate(asked) if (one or share) and row not in barred]
    if drawn or barred or beyond:
        choices.action = choices.action.copy()
        choosing.draw(choices, drawn, asked, stream)
        for row, by in (beyond | barred).items():
            if row not in drawn:
                choosing.replace(choices, row, by, is_barred=row in barred)
    if share or any(asked[row] for row in barred):  # else what was explored was asked for, and nothing else
        choices.marks["asked_to_explore"] = list(asked)
    return choices


@dataclass
class _Choosing:
    policy: ServedPolicy
    observations: NDArray[Any]  # (B, *obs)
    answer: PolicyOutput
    substitute: Substitute | None

    @cached_property
    def instead(self) -> NDArray[Any]:
        """What the substitute does after each observation."""
        assert self.substitute is not None
        return self.substitute.actions(self.observations)

    def greedy(self) -> Choices:
        """What the policy does by itself, and its look-up shield."""
        answer, count = self.answer, len(self.observations)
        shield: list[Json | None] = [None] * count
        if answer.chosen is not None:
            pairs = zip(answer.chosen.tolist(), answer.action.tolist(), strict=True)
            shield = [_mark(chosen, LOOK_UP) if chosen != taken else None for chosen, taken in pairs]
        return Choices(answer.action, answer.value, answer.outputs, [1.0] * count, [False] * count, shield)

    def draw(
        self, choices: Choices, rows: list[int], asked: Sequence[bool], stream: Callable[[int], np.random.Generator]
    ) -> None:
        """Put what is drawn for some rows in place of the greedy actions."""
        clipped = [False] * len(asked)
        for row in rows:
            fallback = None if self.substitute is None else partial(self._instead, row)
            sample = explore(self.policy, self.answer, row, stream(row), asked[row], fallback)
            choices.action[row], choices.propensity[row] = sample.action, sample.propensity
            choices.explored[row], clipped[row] = sample.explored, sample.clipped
            name = self.substitute.name if self.substitute is not None and sample.by_fallback else None
            choices.shield[row] = None if sample.by is None else _mark(sample.chosen, sample.by, name)
        if rows and not self.policy.chooses:
            choices.marks["clipped"] = clipped

    def replace(self, choices: Choices, row: int, by: str, is_barred: bool) -> None:
        """Take something else than the greedy action, which is not allowed."""
        chosen = (self.answer.action if self.answer.chosen is None else self.answer.chosen)[row].tolist()
        guard = self.policy.guard
        if self.substitute is not None:
            choices.action[row] = self._instead(row)
            choices.shield[row] = _mark(chosen, by, self.substitute.name)
        elif is_barred or self.policy.chooses or guard is None or guard.actions is None:
            raise NotAllowed(not_allowed(chosen, by))
        else:
            choices.action[row] = guard.actions.clip(choices.action[row])
            choices.shield[row] = _mark(chosen, by)

    def _instead(self, row: int) -> Any:
        return self.instead[row]


def _mark(chosen: Any, by: str, fallback: str | None = None) -> Json:
    return {"chosen": chosen, "by": by, "fallback": fallback}

"""A model in the PRISM language as an environment."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.finite.model import FiniteModel
from loomrl.environment.finite.of_environment import TERMINATED, Modelled
from loomrl.environment.finite.prism.explore import build_model
from loomrl.environment.finite.prism.syntax import read_program
from loomrl.errors import ConfigError


class PrismEnvironment(gymnasium.Env[NDArray[np.float32], np.int64]):
    """States are those of the model; actions its action names, in the order they are written.

    An action that a state does not offer leaves everything as it is and earns nothing. Where a state has a single
    command without a name, every action takes it. `info` holds every label as a boolean, and `cost` where `cost` names
    rewards of the model.

    Args:
        model: the text of an mdp or dtmc.
        constants: values of constants the text leaves open.
        reward: the model's rewards that are earned; default: its first.
        cost: the model's rewards that are a cost.
        terminal: the label of states that end an episode; default: states without a command.

    Raises:
        ConfigError: for a text that is no model, or a state in which one action can mean several commands.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        model: str,
        constants: Mapping[str, Any] | None = None,
        reward: str | None = None,
        cost: str | None = None,
        terminal: str = "deadlock",
    ) -> None:
        built = build_model(read_program(model), constants, name="environment.kwargs.model")
        if terminal not in built.states.labels:
            raise ConfigError(f'environment.kwargs.terminal: there is no label "{terminal}" in the model')
        labels = built.states.labels
        self._modelled = _controlled(built, labels[terminal], labels["deadlock"])
        made = self._modelled.model
        self._reward = _named(made, reward if reward is not None else next(iter(made.rewards), None), "reward")
        self._cost = None if cost is None else _named(made, cost, "cost")
        self._over = made.states.labels[TERMINATED]
        self._state = 0
        values = made.states.values.astype(np.float32)
        self.observation_space = spaces.Box(values.min(axis=0), values.max(axis=0), dtype=np.float32)
        self.action_space = spaces.Discrete(len(made.action_names))

    def finite_model(self) -> Modelled:
        """The model itself, and its states as they are observed."""
        return self._modelled

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - Gymnasium's signature
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start in the initial state; returns what is observed there, (V,), and the info."""
        super().reset(seed=seed)
        self._state = int(np.flatnonzero(self._modelled.model.states.initial)[0])
        return self._observed(), self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take a choice of the model; the next state is drawn by its probabilities.

        Returns what Gymnasium's `step` does; `truncated` is always False.

        Raises:
            ValueError: for an action that is not in the action space.
        """
        model = self._modelled.model
        if not 0 <= int(action) < len(model.action_names):
            raise ValueError(f"action {action!r} is none of {', '.join(model.action_names)}")
        choice = int(model.choice_start[self._state]) + int(action)
        first, last = model.row_start[choice], model.row_start[choice + 1]
        place = np.searchsorted(np.cumsum(model.probabilities[first:last]), self.np_random.random(), side="right")
        self._state = int(model.columns[min(first + place, last - 1)])
        info = self._info()
        if self._cost is not None:
            info["cost"] = float(self._cost[choice])
        return self._observed(), float(self._reward[choice]), bool(self._over[self._state]), False, info

    def _observed(self) -> NDArray[np.float32]:
        observed: NDArray[np.float32] = self._modelled.observations[self._state].copy()
        return observed

    def _info(self) -> dict[str, Any]:
        return {name: bool(mask[self._state]) for name, mask in self._modelled.model.states.labels.items()}


def _named(model: FiniteModel, name: str | None, key: str) -> NDArray[np.float64]:
    if name is None:
        return np.zeros(model.num_choices)
    if name not in model.rewards:
        known = ", ".join(model.rewards) or "none"
        raise ConfigError(f'environment.kwargs.{key}: the model has no rewards "{name}"; rewards: {known}')
    return model.rewards[name]


def _controlled(model: FiniteModel, over: NDArray[np.bool_], stuck: NDArray[np.bool_]) -> Modelled:
    """With one choice for every action in every state, and absorbing states where an episode is over."""
    names = tuple(name for name in model.action_names if name) or ("",)
    size, count = len(model.states), len(names)
    number = np.array([names.index(name) if name in names else -1 for name in model.action_names])
    chosen = np.full((size, count), -1, np.int64)  # the model's choice for each action; -1: none
    owner = np.repeat(np.arange(size), np.diff(model.choice_start))
    action = number[model.actions]
    alone, still = np.diff(model.choice_start) == 1, over | stuck  # where nothing moves
    everywhere = (action < 0) & alone[owner] & ~still[owner]
    chosen[owner[everywhere]] = np.flatnonzero(everywhere)[:, None]
    ordinary = (action >= 0) & ~still[owner]
    unnamed = np.flatnonzero((action < 0) & ~alone[owner] & ~still[owner])
    twice = np.flatnonzero(ordinary)[_repeated(owner[ordinary] * count + action[ordinary])]
    for choice in (*unnamed[:1], *twice[:1]):
        state = model.states.describe(int(owner[choice]))
        name = model.action_names[model.actions[choice]] or "without a name"
        raise ConfigError(f"environment.kwargs.model: in state {state} several commands are action {name!r}")
    chosen[owner[ordinary], action[ordinary]] = np.flatnonzero(ordinary)
    flat = chosen.reshape(-1)
    lengths = np.where(flat >= 0, np.diff(model.row_start)[flat], 1)
    row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    columns, shares = np.empty(row_start[-1], np.int64), np.ones(row_start[-1])
    stays = np.flatnonzero(flat < 0)
    columns[row_start[stays]] = stays // count
    moves = np.flatnonzero(flat >= 0)
    inside = np.arange(lengths[moves].sum()) - np.repeat(np.cumsum(lengths[moves]) - lengths[moves], lengths[moves])
    to = np.repeat(row_start[moves], lengths[moves]) + inside
    source = np.repeat(model.row_start[flat[moves]], lengths[moves]) + inside
    columns[to], shares[to] = model.columns[source], model.probabilities[source]
    rewards = {name: np.where(flat >= 0, earned[flat], 0.0) for name, earned in model.rewards.items()}
    states = model.states.with_label(TERMINATED, over)
    actions = np.tile(np.arange(count), size)
    made = FiniteModel(states, np.arange(size + 1) * count, row_start, columns, shares, actions, names, rewards)
    return Modelled(made, model.states.values.astype(np.float32))


def _repeated(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of keys that occur before."""
    _, first = np.unique(keys, return_index=True)
    mask = np.ones(len(keys), np.bool_)
    mask[first] = False
    return np.flatnonzero(mask)

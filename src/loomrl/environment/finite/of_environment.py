"""The finite model of an environment that has one.

An environment describes itself by `finite_model() -> Modelled`, or by a table `P[state][action]` of (probability, next
state, reward, terminated), as Gymnasium's toy environments do.
"""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.finite.kernels import gather_rows
from loomrl.environment.finite.model import Chain, FiniteModel, Ints, States
from loomrl.environment.finite.shield import Shield
from loomrl.environment.layers import layers_of
from loomrl.errors import ConfigError

_HARMLESS = (
    "TimeLimit",
    "OrderEnforcing",
    "PassiveEnvChecker",
)  # Gymnasium's own, which change nothing that is modelled
_ONE = 1e-9  # how far a sum of probabilities may be from 1
TERMINATED = "terminated"  # the label of states in which an episode has ended


@dataclass(frozen=True)
class Modelled:
    """A model in which choice a of every state is action a, and what a policy observes in each state, (S, *obs)."""

    model: FiniteModel
    observations: NDArray[Any]

    def chain(self, actions: NDArray[Any]) -> Chain:
        """The chain under a policy that takes action `actions[s]`, (S,), in state s; its reachable part.

        Raises:
            ConfigError: for an action the environment does not have.
        """
        return self.model.chain(self._choices(np.asarray(actions))).reachable()

    def at_random(self) -> Chain:
        """The chain under a policy that takes each action alike in every state; its reachable part."""
        model, size, count = self.model, len(self.model.states), len(self.model.action_names)
        rows = np.repeat(np.arange(size), np.diff(model.row_start[model.choice_start]))
        entries = _joined(rows, model.columns, model.probabilities / count, size, size)
        rewards = {name: reward.reshape(size, count).mean(axis=1) for name, reward in model.rewards.items()}
        return Chain(model.states, *entries, rewards).reachable()

    def behind(self, shield: Shield) -> "Modelled":
        """The model in which every action does what is taken in its place behind a shield.

        Raises:
            NoState: for a state in which an episode goes on, and of which the shield knows nothing.
        """
        model, count = self.model, len(self.model.action_names)
        deciding = ~model.states.labels.get(TERMINATED, np.zeros(len(model.states), np.bool_))
        instead = np.tile(np.arange(count), (len(model.states), 1))
        instead[deciding] = shield.rows(self.observations[deciding])
        choices = (model.choice_start[:-1, None] + instead).reshape(-1)
        row_start, entries = gather_rows(model.row_start, choices)
        taken = replace(
            model,
            row_start=row_start,
            columns=model.columns[entries],
            probabilities=model.probabilities[entries],
            rewards={name: reward[choices] for name, reward in model.rewards.items()},
        )
        return replace(self, model=taken)

    def _choices(self, actions: NDArray[Any]) -> Ints:
        count = len(self.model.action_names)
        wrong = np.flatnonzero((actions < 0) | (actions >= count) | (actions != np.round(actions)))
        if len(wrong):
            state = self.model.states.describe(int(wrong[0]))
            raise ConfigError(
                f"the policy takes action {actions[wrong[0]]} in state {state}; actions are 0 to {count - 1}"
            )
        return self.model.choice_start[:-1] + actions.astype(np.int64)


def model_of(env: gymnasium.Env[Any, Any]) -> Modelled:
    """The model of an environment, with `terminated` states absorbing.

    Raises:
        ConfigError: where it has none, observes something else than its states, or probabilities do not sum to 1.
    """
    bare: Any = env.unwrapped
    demand_bare(env)
    if callable(getattr(bare, "finite_model", None)):
        found: Modelled = bare.finite_model()
    elif isinstance(getattr(bare, "P", None), dict) and isinstance(bare.observation_space, spaces.Discrete):
        found = _from_table(bare)
    else:
        raise ConfigError(
            f"{type(bare).__name__} has no finite model: it needs a method finite_model(), or a table P of transitions"
        )
    expected = (len(found.model.states), *(env.observation_space.shape or ()))
    if found.observations.shape != expected:
        raise ConfigError(
            f"{type(bare).__name__}: a policy observes {env.observation_space}, and a state of its model is "
            f"{found.observations.shape[1:]}: a model knows no past, so observations must not be stacked"
        )
    _demand_whole(found, env.observation_space.dtype, type(bare).__name__)
    shield = shield_around(env)
    return found if shield is None else found.behind(shield)


def shield_around(env: gymnasium.Env[Any, Any]) -> Shield | None:
    """The shield an environment is behind, if any: that of a wrapper around it."""
    shields = (layer.__dict__.get("shield") for layer in layers_of(env) if isinstance(layer, gymnasium.Wrapper))
    return next((shield for shield in shields if isinstance(shield, Shield)), None)


def demand_bare(env: gymnasium.Env[Any, Any]) -> None:
    """Demand that no wrapper changes what happens: the model below it would be another environment's.

    Raises:
        ConfigError: for a wrapper that is neither LoomRL's nor known to change nothing, and where the environment is
            made anew, with drawn parameters, for every episode.
    """
    *wrappers, inner = layers_of(env)
    for kind in map(type, wrappers):
        if not kind.__module__.startswith("loomrl.environment.") and kind.__name__ not in _HARMLESS:
            raise ConfigError(
                f"{kind.__name__} is wrapped around {type(env.unwrapped).__name__}, whose finite model knows nothing "
                "of it; give the environment a finite_model() of its own"
            )
    if inner is not inner.unwrapped:
        raise ConfigError(
            f"{type(inner).__name__} puts another {type(env.unwrapped).__name__} in every episode: there is no one "
            "model of it; fix what is drawn"
        )


def _demand_whole(modelled: Modelled, dtype: Any, name: str) -> None:
    """What every claim about a model rests on.

    Raises:
        ConfigError: naming the first state at which it is wrong.
    """
    model, count = modelled.model, len(modelled.model.action_names)

    def refuse(choice: int, problem: str) -> ConfigError:
        state = int(np.searchsorted(model.choice_start, choice, side="right")) - 1
        return ConfigError(f"{name}: the finite model at {model.states.describe(state)}: {problem}")

    several = np.flatnonzero(np.diff(model.choice_start) != count)
    if len(several):
        raise refuse(int(model.choice_start[several[0]]), f"every state has one choice for each of {count} actions")
    sizes = np.diff(model.row_start)
    if len(sizes) != model.num_choices or (sizes < 1).any() or model.row_start[-1] != len(model.columns):
        raise ConfigError(f"{name}: the finite model: row_start does not fit {model.num_choices} choices")
    if model.columns.min() < 0 or model.columns.max() >= len(model.states):
        raise ConfigError(f"{name}: the finite model: a transition leads to a state that is not there")
    wrong = np.flatnonzero(np.abs(np.add.reduceat(model.probabilities, model.row_start[:-1]) - 1.0) > _ONE)
    if len(wrong):
        raise refuse(int(wrong[0]), "probabilities do not sum to 1")
    if not (model.probabilities > 0.0).all():
        place = int(np.flatnonzero(~(model.probabilities > 0.0))[0])
        choice = int(np.searchsorted(model.row_start, place, side="right")) - 1
        raise refuse(choice, f"a probability is {model.probabilities[place]:g}; leave out what cannot happen")
    if modelled.observations.dtype != dtype:
        raise ConfigError(
            f"{name}: a policy observes {dtype}, and states of the finite model are {modelled.observations.dtype}"
        )


def _from_table(env: Any) -> Modelled:
    """States are (`s`, `over`): where an episode ended in s, `over` is true, and the state is absorbing."""
    num_states, num_actions = int(env.observation_space.n), int(env.action_space.n)
    rows = np.array(
        [
            (state, action, share, int(after), reward, bool(ended))
            for state in range(num_states)
            for action in range(num_actions)
            for share, after, reward, ended in env.P[state][action]
        ],
        dtype=np.float64,
    )
    state, action, share, after, reward, ended = rows.T
    choice = (state * num_actions + action).astype(np.int64)
    total = np.bincount(choice, weights=share, minlength=num_states * num_actions)
    wrong = np.flatnonzero(np.abs(total - 1.0) > 1e-12)
    if len(wrong):
        where = divmod(int(wrong[0]), num_actions)
        raise ConfigError(f"P[{where[0]}][{where[1]}]: probabilities sum to {total[wrong[0]]:.12g}, not to 1")
    finals = np.unique(after[ended > 0]).astype(np.int64)
    size = num_states + len(finals)
    target = np.where(ended > 0, num_states + np.searchsorted(finals, after), after).astype(np.int64)
    last = np.repeat(np.arange(num_states, size), num_actions)
    choice = np.concatenate([choice, last * num_actions + np.tile(np.arange(num_actions), len(finals))])
    target, share = np.concatenate([target, last]), np.concatenate([share, np.ones(len(last))])
    earned = np.bincount(choice[: len(reward)], weights=reward * rows[:, 2], minlength=size * num_actions)
    row_start, columns, shares = _joined(choice, target, share, size * num_actions, size)
    over = np.concatenate([np.zeros(num_states, np.int64), np.ones(len(finals), np.int64)])
    number = np.concatenate([np.arange(num_states), finals])
    initial = np.concatenate([_first(env, num_states), np.zeros(len(finals))])
    labels = {TERMINATED: over > 0, "init": initial > 0.0}
    states = States(("s", "over"), np.stack([number, over], axis=1), frozenset({"over"}), initial, labels)
    rewards = {"reward": np.asarray(earned, np.float64)}
    model = FiniteModel(
        states,
        np.arange(size + 1) * num_actions,
        row_start,
        columns,
        shares,
        np.tile(np.arange(num_actions), size),
        tuple(str(index) for index in range(num_actions)),
        rewards,
    )
    return Modelled(model, (number + int(env.observation_space.start)).astype(env.observation_space.dtype))


def _first(env: Any, num_states: int) -> NDArray[np.float64]:
    found = getattr(env, "initial_state_distrib", None)
    if found is None or len(found) != num_states:
        raise ConfigError(f"{type(env).__name__} has a table P and no initial_state_distrib, (states,)")
    first = np.asarray(found, np.float64)
    if abs(float(first.sum()) - 1.0) > 1e-9 or (first < 0.0).any():
        raise ConfigError(f"{type(env).__name__}: initial_state_distrib sums to {first.sum():.12g}, not to 1")
    return first


def _joined(
    rows: Ints, columns: Ints, shares: NDArray[np.float64], num_rows: int, num_columns: int
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Entries as sorted sparse rows, those of one place added up and those of probability 0 left out."""
    from scipy.sparse import csr_array

    matrix = csr_array((shares, (rows, columns)), shape=(num_rows, num_columns))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data

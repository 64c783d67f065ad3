"""Rollouts of policies whose actions are no texts: one action for each observation, and how likely it was."""

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.wrappers.flat import misfits
from loomrl.errors import ConfigError, ServiceError
from loomrl.language.inference.weights import is_same


@dataclass(frozen=True)
class ActionRollout:
    """One action for one observation, made by this version of the policy.

    `state` is the raw observation (*obs), `action` what the environment takes: a number, or an array (*action).
    `log_prob` is that of what was drawn, before continuous actions were clipped to their bounds; `value` the critic's.
    """

    state: NDArray[Any]
    action: Any
    log_prob: float
    value: float
    version: int


class ActionEngine:
    """Serves actions by a copy of the policy that was handed over last. `seed` is that of its draws. It may be called
    from several threads, and needs no closing."""

    def __init__(self, seed: int = 0) -> None:
        self._served: tuple[ActorCriticPolicy, int] | None = None
        self._rng, self._lock = np.random.default_rng(seed), threading.Lock()

    @property
    def version(self) -> int:
        """The version of the policy that is served; -1 before there is one."""
        return -1 if self._served is None else self._served[1]

    def update(self, policy: ActorCriticPolicy, version: int) -> None:
        """Serve a copy of a policy from now on. Where an error is raised, what was served before goes on being served.

        Raises:
            ConfigError: for a policy of other observations or actions than the one served, a version below 0, or other
                weights as the version that is served.
            ArtifactError: when a weight is not finite.
        """
        if self._served is not None and _kind(policy) != _kind(self._served[0]):
            raise ConfigError("the new policy has other observations or actions; serve it by an engine of its own")
        served = None if self._served is None else (self._served[0].state_dict(), self._served[1])
        if is_same(version, policy.state_dict(), served):
            return
        self._served = copy.deepcopy(policy).requires_grad_(False).eval(), version

    def rollouts(
        self, states: Sequence[ArrayLike], n: int, temperature: float, seed: int | None = None
    ) -> list[ActionRollout]:
        """`n` actions for each observation: those of the first, then those of the next. They are drawn at temperature
        1, and the likeliest at 0; the same again for the same `seed` (None: by the engine's own).

        Raises:
            ConfigError: for an observation of another shape than the policy's or with a number that its space does not
                have, another temperature, or `n` below 1.
            ServiceError: before there is a policy.
        """
        if n < 1:
            raise ConfigError(f"n is {n}; at least 1 action for an observation")
        if self._served is None:
            raise ServiceError("the engine has no policy; load one with load_policy or update")
        if temperature not in (0.0, 1.0):
            raise ConfigError(f"temperature {temperature}: actions are drawn at 1, or the likeliest is taken at 0")
        policy, version = self._served
        if not len(states):
            return []
        obs = np.repeat(_observations(states, policy.observation_space), n, axis=0)  # (N, *obs)
        rng = self._rng if seed is None else np.random.default_rng(seed)
        with self._lock:
            action, log_prob, value = _answers(policy, obs, rng if temperature else None)
        answers = zip(obs, action, log_prob.tolist(), value.tolist(), strict=True)
        return [ActionRollout(*answer, version) for answer in answers]


def _observations(states: Sequence[ArrayLike], space: gymnasium.Space[Any]) -> NDArray[Any]:
    """The states as observations (N, *obs) of a space, none altered but by rounding to its floats."""
    rows = [_array(state) for state in states]
    for number, row in enumerate(rows):
        if row.dtype.kind not in "biuf":
            raise ConfigError(f"state {number} is {states[number]!r:.200}; the policy observes {space}")
        if row.shape != space.shape:
            raise ConfigError(f"state {number} has the shape {row.shape}; the policy observes {space.shape}")
    given = np.stack(rows)
    if (wrong := misfits(space, given)).any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise ConfigError(f"state {place[0]} holds {given[place]}; the policy observes {space}")
    return given.astype(space.dtype)


def _array(state: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(state)
    except ValueError:  # lists of different lengths
        return np.asarray(None)


def _answers(
    policy: ActorCriticPolicy, obs: NDArray[Any], rng: np.random.Generator | None
) -> tuple[NDArray[Any], torch.Tensor, torch.Tensor]:
    """Actions (N, *action), the likeliest where there is no generator; their log-probabilities and values (N,)."""
    distribution = policy.distribution
    with torch.no_grad():
        features = policy.features(torch.from_numpy(obs))
        parameters = policy.parameters_of(features)
        if rng is None:
            action = distribution.greedy(parameters).numpy()
            drawn = action
        else:
            act = distribution.sample(tuple(one.numpy() for one in parameters), rng)
            action, drawn = act.action, act.extras.get("sample", act.action)
        log_prob, _ = distribution.log_prob_and_entropy(parameters, distribution.from_actions(torch.from_numpy(drawn)))
        return action, log_prob, policy.value_head(policy.critic(features))


def _kind(policy: ActorCriticPolicy) -> tuple[Any, Any]:
    return policy.observation_space, policy.action_space

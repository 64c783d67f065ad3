"""Environments behind a shield (post-posed: Alshiekh et al., Safe reinforcement learning via shielding, AAAI 2018).

An action that is not allowed is replaced before the environment sees it, by the allowed one of least risk. To whoever
learns this is what the action does: any algorithm learns behind a shield, and what is learnt is examined, exported and
served behind the same one.
"""

from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.config import ShieldConfig
from loomrl.environment.finite.shield import NoState, Shield
from loomrl.environment.resolve import Definition
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.system.files import canonical_json

_BUILT: dict[tuple[Any, bytes], Shield] = {}


class Shielded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes in place of an action that its shield does not allow the allowed one of least risk.

    Every info tells by `shielded`, 0 or 1, whether another action was taken than the one that was chosen.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], shield: Shield, name: str) -> None:
        super().__init__(env)
        self.shield, self._name = shield, name
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """What the environment's reset returns; its info also holds `shielded`, 0.0."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        return self._obs, info | {"shielded": 0.0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step with the action that the shield makes of the chosen one; its info also has `shielded`.

        Raises:
            EnvironmentFault: when what was observed is no state of the model.
            IndexError: for an action that the model does not have.
        """
        try:
            taken = self.shield.correct(np.asarray(self._obs)[None], np.asarray(action).reshape(1))[0]
        except NoState as error:
            raise EnvironmentFault(f"environment {self._name!r}: {error}; mend its finite model") from error
        self._obs, reward, terminated, truncated, info = self.env.step(taken)
        return self._obs, reward, terminated, truncated, info | {"shielded": float(taken != action)}


def shield_for(env: gymnasium.Env[Any, Any], definition: Definition) -> Shield:
    """The shield a definition asks for, from the environment's finite model; computed once in a process.

    Raises:
        ConfigError: when the environment has no finite model, its actions are not a choice from 0 on, or the condition
            for what is unsafe cannot be read, holds in no state, or holds where episodes begin.
    """
    assert definition.shield is not None
    settings = {"kwargs": definition.kwargs, "shield": definition.shield.model_dump(mode="json")}
    key = (definition.source.create, canonical_json(settings))
    if key not in _BUILT:
        _BUILT[key] = _build(env, definition.shield, definition.name)
    return _BUILT[key]


def _build(env: gymnasium.Env[Any, Any], config: ShieldConfig, name: str) -> Shield:
    from loomrl.environment.finite.of_environment import model_of
    from loomrl.environment.finite.shielding import build_shield, states_where

    actions = env.action_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise ConfigError(
            f"environment {name!r}: environment.shield needs a choice of actions from 0 on, not {actions}"
        )
    try:
        modelled = model_of(env)
    except ConfigError as error:
        raise ConfigError(f"environment.shield of {name!r}: {error}") from error
    unsafe = states_where(config.unsafe, modelled.model.states, "environment.shield.unsafe")
    if not unsafe.any():
        raise ConfigError(
            f"environment.shield.unsafe {config.unsafe!r} holds in no state of {name!r}: nothing is kept away"
        )
    if (unsafe & (modelled.model.states.initial > 0.0)).any():
        raise ConfigError(f"environment.shield.unsafe {config.unsafe!r} holds where episodes of {name!r} begin")
    return build_shield(modelled, unsafe, config.tolerance)

"""Old environment ids become current ones everywhere, by one function."""

import warnings
from pathlib import Path

import pytest

from loomrl import PPOTrainer, VectorizedEnv, register_environment
from loomrl.environment import registry
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.ids import current_id
from loomrl.environment.resolve import resolve
from loomrl.errors import ConfigError


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("Humanoid-v1", "Humanoid-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("FrozenLake-v0", "FrozenLake-v1"),
    ],
)
def test_an_old_id_is_the_current_one_with_a_warning(old: str, current: str, loomrl_home: Path) -> None:
    with pytest.warns(UserWarning, match=f"{old} is no longer part of Gymnasium; {current} is used"):
        assert resolve(EnvironmentConfig(id=old), Path()).name == current


@pytest.mark.parametrize("kept", ["CartPole-v1", "CartPole-v0", "HalfCheetah-v4", "CartPole-v7", "Nothing-v0", "pole"])
def test_other_ids_are_left_alone(kept: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current_id(kept) == kept


@pytest.mark.parametrize("name", ["Pendulum-v0", "Hopper-v1"])
def test_what_was_registered_under_an_old_id_keeps_it(
    name: str, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as once:
        once.setattr(registry, "_taken", lambda name: None)  # as it was before such names were refused
        register_environment(name, "gymnasium.envs.classic_control:CartPoleEnv", "1.0.0", max_episode_steps=9)
    assert resolve(EnvironmentConfig(id=name), Path()).max_episode_steps == 9


def test_unknown_ids_are_named(loomrl_home: Path) -> None:
    with pytest.raises(ConfigError, match="'CartPol-v1' is neither .* did you mean CartPole-v1"):
        resolve(EnvironmentConfig(id="CartPol-v1"), Path())


def test_public_classes_translate_too(loomrl_home: Path) -> None:
    with pytest.warns(UserWarning, match="Pendulum-v1 is used"), VectorizedEnv({"env_id": "Pendulum-v0"}) as envs:
        assert envs.action_space.shape == (1,)
    with pytest.warns(UserWarning, match="Pendulum-v1 is used"):
        assert PPOTrainer({"environment": "Pendulum-v0"}).policy.observation_space.shape == (3,)

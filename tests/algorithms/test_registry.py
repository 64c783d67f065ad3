"""Algorithms are found in the folder and through entry points; wrong parameters are named before anything runs."""

import importlib.metadata
from pathlib import Path

import pytest

from loomrl.algorithms import ppo, registry
from loomrl.errors import ConfigError
from loomrl.training.config import TrainingConfig


def config(**parameters: object) -> TrainingConfig:
    return TrainingConfig(total_env_steps=1000, parameters=parameters)


def test_own_algorithms_are_the_files_of_the_folder() -> None:
    assert registry.find_algorithms()["ppo"].module is ppo


def test_unknown_algorithm_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"training.algorithm: unknown algorithm 'pppo'; there are: .*ppo"):
        registry.validate(TrainingConfig(algorithm="pppo", total_env_steps=1))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, point: str) -> None:
    """What pip leaves behind for a package with an entry point."""
    name = f"loomrl_plugin_{abs(hash(code))}"
    (folder / f"{name}.py").write_text(code)
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[loomrl.algorithms]\n{point} = {name}\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


PLUGIN = """
from loomrl.algorithms import ppo
from loomrl.system.schema import Section
NAME = "mine"
class Config(Section):
    strength: int = 3
def build(config, observation_space, action_space, *, seed, total_env_steps):
    return ppo.build(ppo.Config(), observation_space, action_space, seed=seed, total_env_steps=total_env_steps)
"""


def test_third_party_algorithms_come_through_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, PLUGIN, "mine")
    validated = registry.validate(TrainingConfig(algorithm="mine", total_env_steps=1, parameters={"strength": 4}))
    assert validated.model_dump() == {"strength": 4}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import does_not_exist_anywhere", "entry point .* cannot be loaded: .*does_not_exist_anywhere"),
        ("NAME = 'half'", "must offer NAME, Config and build"),
        (PLUGIN.replace('"mine"', '"ppo"'), "two algorithms are named 'ppo'"),
    ],
)
def test_broken_plugins_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str) -> None:
    install(tmp_path, monkeypatch, code, "broken")
    with pytest.raises(ConfigError, match=message):
        registry.find_algorithms()


def test_defaults_and_aliases() -> None:
    validated = registry.validate(config(clip_range=0.1, value_coef=0.25))
    assert isinstance(validated, ppo.Config)
    assert (validated.clip_epsilon, validated.value_loss_coef) == (0.1, 0.25)
    assert ppo.Config().steps_per_rollout == 128  # 16 environments: the smallest with 2048 transitions
    assert ppo.Config(batch_size=4096, num_envs=10).steps_per_rollout == 410


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"learning_rat": 1}, r"training.parameters.learning_rat: unknown key; did you mean 'learning_rate'\? allowed"),
        ({"n_epochs": "many"}, r"training.parameters.n_epochs: .* found 'many'"),
        ({"gamma": 1.5}, r"training.parameters.gamma: .*less than or equal to 1, found 1.5"),
        ({"learning_rate": float("nan")}, r"training.parameters.learning_rate: .*finite"),
        ({"activation": "sigmoid"}, r"training.parameters.activation: .*'tanh'.*'relu'"),
        ({"clip_range": 0.1, "clip_epsilon": 0.1}, "clip_range and clip_epsilon are the same parameter"),
        ({"batch_size": 512, "num_envs": 4, "rollout_length": 64}, "batch_size 512 is above the rollout's .* = 256"),
        ({"desired_kl": 0.01}, "`learning_rate_schedule: adaptive` and `desired_kl` need each other"),
        ({"learning_rate_schedule": "adaptive"}, "need each other"),
        ({"hidden_sizes": []}, "hidden_sizes .*: give one or more positive layer widths"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.validate(config(**parameters))

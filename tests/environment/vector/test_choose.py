"""The choice of a back-end: by proof, in a fixed order, settled once beside the snapshot."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from loomrl.environment import make
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import BACKEND, choose_backend, make_env, make_envs, settle_backend
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector import choose as choosing
from loomrl.environment.vector.choose import choose, is_exact
from loomrl.environment.vector.classic import cartpole
from loomrl.errors import ArtifactError, ConfigError
from loomrl.runs import preflight
from loomrl.runs.config import load_config

PROJECT = Path(".")

HEAVIER = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Heavier(CartPoleEnv):
    def __init__(self):
        super().__init__()
        self.masspole = 0.2
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), PROJECT, tmp_path / "snapshot")
    return tmp_path / "snapshot"


@pytest.mark.parametrize(
    ("name", "backend"),
    [("Acrobot-v1", "batched"), ("Hopper-v5", "mujoco"), ("Reacher-v5", "serial"), ("FrozenLake-v1", "serial")],
)
def test_the_fastest_exact_back_end_is_chosen(name: str, backend: str) -> None:
    assert choose(resolve(EnvironmentConfig(id=name), PROJECT)) == backend


@pytest.mark.parametrize("kwargs", [{"sutton_barto_reward": True}, {}])
def test_parameters_of_the_environment_are_honoured(kwargs: dict[str, object]) -> None:
    assert is_exact("batched", resolve(EnvironmentConfig(id="CartPole-v1", kwargs=kwargs), PROJECT))


def test_code_of_a_user_is_stepped_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "cartpole.py").write_text(HEAVIER)
    config = EnvironmentConfig(id="heavier", entry_point="cartpole:Heavier", path=tmp_path)
    assert choose(resolve(config, tmp_path)) == "serial"


@pytest.mark.parametrize(("part", "by"), [("masspole", 1.0001), ("x_threshold", 0.02), ("force_mag", 1.001)])
def test_dynamics_that_differ_are_found(part: str, by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = cartpole.DYNAMICS
    names = cartpole._NAMES

    def parameters(env: object) -> np.ndarray:
        values = changed.parameters(env)  # type: ignore[arg-type]
        values[names.index(part)] *= by
        return values

    from dataclasses import replace

    monkeypatch.setattr(cartpole, "DYNAMICS", replace(changed, parameters=parameters))
    definition = resolve(EnvironmentConfig(id="CartPole-v1"), PROJECT)
    assert not is_exact("batched", definition)
    assert choose(definition) == "serial"


def test_a_missing_package_is_passed_over_and_named(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> object:
        if name == "batched":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
        return load(name)

    load = choosing.load_backend
    monkeypatch.setattr(choosing, "load_backend", without)
    assert choose(resolve(EnvironmentConfig(id="CartPole-v1"), PROJECT)) == "serial"
    with pytest.raises(ConfigError, match=r"'batched': No module named 'numba'; pip install 'loomrl\[train\]'"):
        make_envs(snapshot, 2, backend="batched")


def test_the_choice_is_settled_once_and_obeyed(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle_backend(snapshot, "auto") == "batched"
    assert settle_backend(snapshot, "serial") == "serial"

    def never(definition: object) -> str:
        raise AssertionError("chosen again")

    monkeypatch.setattr(make, "choose", never)
    assert choose_backend(snapshot) == "serial"
    with closing(make_envs(snapshot, 2)) as envs:
        assert type(envs).__name__ == "SerialVectorEnv"
    (snapshot / BACKEND).write_text("[]")
    with pytest.raises(
        ArtifactError, match=r"backend\.json is not a valid Stepping.* run the stage that wrote it again"
    ):
        make_envs(snapshot, 2)


def test_without_a_record_a_vector_gives_what_single_environments_give(snapshot: Path) -> None:
    assert choose_backend(snapshot) == "batched"
    with closing(make_envs(snapshot, 2, "disabled")) as envs, closing(make_env(snapshot)) as env:
        obs, _ = envs.reset(seed=7)
        assert obs[1].tobytes() == env.reset(seed=8)[0].tobytes()


def test_a_back_end_without_the_environment_is_refused(tmp_path: Path) -> None:
    take_snapshot(EnvironmentConfig(id="FrozenLake-v1"), PROJECT, tmp_path)
    with pytest.raises(ConfigError, match="'mujoco' does not step 'FrozenLake-v1' exactly; use \"auto\""):
        settle_backend(tmp_path, "mujoco")


def test_preflight_writes_the_choice_into_the_config_once(tmp_path: Path) -> None:
    text = Path("configs/cartpole.yaml").read_text()
    path = tmp_path / "cartpole.yaml"
    path.write_text("".join(line for line in text.splitlines(keepends=True) if "backend:" not in line))
    settled = preflight.settle(load_config(path), PROJECT)
    assert settled == {"environment.backend": "batched"}
    assert preflight.settle(load_config(path, settled), PROJECT) == {}

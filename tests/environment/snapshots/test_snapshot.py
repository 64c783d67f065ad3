import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.envs.registration import registry as gymnasium_registry

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env, make_envs, restored_definition
from loomrl.environment.snapshots.snapshot import DOCUMENT, load_snapshot, take_snapshot
from loomrl.environment.sources.source import ARCHIVE
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault
from loomrl.system.files import read_json, sums, write_json

IDS = ["CartPole-v1", "LunarLander-v3", "Hopper-v5", "FrozenLake-v1", "Blackjack-v1"]


def rooms_config(rooms: Path, **changes: object) -> EnvironmentConfig:
    fields = {"id": "thermostat", "entry_point": "rooms.thermostat:Thermostat", "path": rooms, **changes}
    return EnvironmentConfig.model_validate(fields)


@pytest.mark.parametrize("environment_id", IDS)
def test_any_gymnasium_id_goes_as_it_is(environment_id: str, tmp_path: Path) -> None:
    taken = take_snapshot(EnvironmentConfig(id=environment_id), tmp_path, tmp_path / "a")
    assert load_snapshot(tmp_path / "a") == taken
    assert taken.dependencies.keys() >= {"python", "gymnasium", "numpy"}
    again = take_snapshot(EnvironmentConfig(id=environment_id), tmp_path, tmp_path / "b")
    assert again.digest == taken.digest
    assert sums(tmp_path / "a") == sums(tmp_path / "b")
    env = make_env(tmp_path / "a")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    env.close()


@pytest.mark.parametrize(
    ("environment_id", "distribution"), [("LunarLander-v3", "box2d"), ("Hopper-v5", "mujoco"), ("CartPole-v1", "numpy")]
)
def test_dependencies_are_what_the_dynamics_need(environment_id: str, distribution: str, tmp_path: Path) -> None:
    taken = take_snapshot(EnvironmentConfig(id=environment_id), tmp_path, tmp_path / "snapshot")
    assert distribution in taken.dependencies
    assert not taken.dependencies.keys() & {"pygame-ce", "torch", "pytest", "sqlalchemy"}


def test_bytes_are_equal_in_another_process_at_another_path(rooms: Path, tmp_path: Path) -> None:
    take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "here")
    moved = tmp_path / "elsewhere" / "code"
    moved.parent.mkdir()
    rooms.rename(moved)
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    (moved / "rooms" / "__pycache__").mkdir(exist_ok=True)
    (moved / "rooms" / "__pycache__" / "x.pyc").write_bytes(b"x")
    program = (
        "from pathlib import Path; from loomrl.environment.config import EnvironmentConfig;"
        "from loomrl.environment.snapshots.snapshot import take_snapshot;"
        "take_snapshot(EnvironmentConfig(id='thermostat', entry_point='rooms.thermostat:Thermostat', path='code'),"
        " Path('.'), Path('snapshot'))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=moved.parent, check=True)
    assert sums(moved.parent / "snapshot") == sums(tmp_path / "here")


def test_nothing_in_a_snapshot_names_this_machine(rooms: Path, tmp_path: Path) -> None:
    take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "snapshot")
    content = b"".join(path.read_bytes() for path in (tmp_path / "snapshot").iterdir())
    for word in (str(tmp_path), os.uname().nodename, sys.prefix):
        assert word.encode() not in content


@pytest.mark.parametrize("name", [ARCHIVE, "dynamics.safetensors", DOCUMENT])
def test_a_tampered_file_is_refused(name: str, rooms: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    take_snapshot(rooms_config(rooms), tmp_path, folder)
    data = bytearray((folder / name).read_bytes())
    position = data.find(b"1.0") if name == ARCHIVE else len(data) - 2
    data[position] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        make_env(folder)


def test_a_field_changed_with_care_is_refused(rooms: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    take_snapshot(rooms_config(rooms), tmp_path, folder)
    document = read_json(folder / DOCUMENT)
    document["spec"]["max_episode_steps"] = 5
    write_json(folder / DOCUMENT, document)
    with pytest.raises(ArtifactError, match="was changed after the snapshot was taken"):
        load_snapshot(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"snapshot\.json is missing"):
        load_snapshot(tmp_path)


def test_parameters_of_the_config_win(tmp_path: Path) -> None:
    config = EnvironmentConfig(
        id="FrozenLake-v1", kwargs={"is_slippery": False}, max_episode_steps=7, reward_threshold=0.25
    )
    spec = take_snapshot(config, tmp_path, tmp_path / "snapshot").spec
    assert spec.kwargs == {"map_name": "4x4", "is_slippery": False}
    assert (spec.max_episode_steps, spec.reward_threshold) == (7, 0.25)
    env = make_env(tmp_path / "snapshot")
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]


def test_vectors_reset_in_the_same_step_or_not_at_all(tmp_path: Path) -> None:
    config = EnvironmentConfig(id="CartPole-v1", max_episode_steps=3)
    take_snapshot(config, tmp_path, tmp_path / "snapshot")
    envs = make_envs(tmp_path / "snapshot", 2)
    first, _ = envs.reset(seed=[1, 2])
    for _ in range(3):
        observation, _, _, truncated, info = envs.step(np.array([0, 1]))
    assert truncated.all()
    assert not np.array_equal(np.stack(list(info["final_obs"])), observation)
    disabled = make_envs(tmp_path / "snapshot", 2, autoreset="disabled")
    assert np.array_equal(disabled.reset(seed=[1, 2])[0], first)
    with pytest.raises(ConfigError, match="at least 1"):
        make_envs(tmp_path / "snapshot", 0)


def test_an_unknown_id_names_near_matches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'CartPoel-v1' is neither .* did you mean CartPole-v1"):
        take_snapshot(EnvironmentConfig(id="CartPoel-v1"), tmp_path, tmp_path / "snapshot")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry_point": "rooms.thermostat"}, "must be written `module:Class`"),
        ({"entry_point": "rooms.thermostat:Termostat"}, r"has no 'Termostat'; its classes: .*Thermostat"),
        ({"entry_point": "kitchen:Stove"}, "holds no module 'kitchen'"),
        ({"path": Path("nowhere")}, "is not a folder"),
        ({"entry_point": "rooms.thermostat:np"}, "names a module, not a class"),
        ({"entry_point": "rooms.cellar:Cellar"}, "No module named"),
    ],
)
def test_a_wrong_entry_point_says_what_is_wrong(changes: dict, message: str, rooms: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        take_snapshot(rooms_config(rooms, **changes), tmp_path, tmp_path / "snapshot")


def test_wrong_kwargs_name_what_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'gravitas'; it takes: .*sutton_barto_reward"):
        take_snapshot(EnvironmentConfig(id="CartPole-v1", kwargs={"gravitas": 1}), tmp_path, tmp_path / "snapshot")


def test_a_missing_optional_package_names_the_extra(
    tmp_path: Path, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rooms / "rooms" / "thermostat.py").write_text("import mujoco\n")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ConfigError, match=r"pip install 'loomrl\[mujoco\]'"):
        take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "snapshot")


@pytest.mark.parametrize(
    ("package", "environment_id", "extra"), [("Box2D", "LunarLander-v3", "box2d"), ("mujoco", "Hopper-v5", "mujoco")]
)
def test_a_gymnasium_id_names_the_extra_too(package: str, environment_id: str, extra: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from pathlib import Path\n"
        "from loomrl.environment.config import EnvironmentConfig\n"
        "from loomrl.environment.snapshots.snapshot import take_snapshot\n"
        f"take_snapshot(EnvironmentConfig(id='{environment_id}'), Path('.'), Path('snapshot'))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1].endswith(f"pip install 'loomrl[{extra}]'")


def test_an_environment_that_cannot_repeat_itself_is_refused(rooms: Path, tmp_path: Path) -> None:
    file = rooms / "rooms" / "thermostat.py"
    file.write_text(file.read_text().replace("self.np_random.uniform", "np.random.default_rng().uniform"))
    with pytest.raises(
        EnvironmentFault, match="two runs with equal seeds and actions differ; draw every random number"
    ):
        take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "snapshot")
    assert not (tmp_path / "snapshot" / DOCUMENT).exists()


def test_an_environment_that_returns_nan_is_refused(rooms: Path, tmp_path: Path) -> None:
    file = rooms / "rooms" / "thermostat.py"
    file.write_text(file.read_text().replace("-abs(self.temperature)", "float('nan')"))
    with pytest.raises(EnvironmentFault, match=r"'thermostat', step 1 .* reward is nan"):
        take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "snapshot")


def test_a_render_mode_is_passed_on(tmp_path: Path) -> None:
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), tmp_path, tmp_path / "snapshot")
    env = make_env(tmp_path / "snapshot", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.ndim == 3
    env.close()
    with pytest.raises(ConfigError, match="no render mode 'hologram'; its modes: human, rgb_array"):
        make_env(tmp_path / "snapshot", render_mode="hologram")


def test_the_importable_source_is_used_where_it_is_equal(tmp_path: Path) -> None:
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), tmp_path, tmp_path / "snapshot")
    create = restored_definition(tmp_path / "snapshot").source.create
    assert create.__module__ == "gymnasium.envs.classic_control.cartpole"


def test_an_id_that_a_users_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_of_one.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class HeavyCart(CartPoleEnv):\n    def __init__(self, **kwargs):\n        super().__init__(**kwargs)\n"
        "        self.masscart = 5.0\n"
        "gymnasium.register('HeavyCart-v3', entry_point=HeavyCart, max_episode_steps=50, kwargs={})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    taken = take_snapshot(EnvironmentConfig(id="lab_of_one:HeavyCart-v3"), tmp_path, tmp_path / "snapshot")
    assert taken.source_roots == ["lab_of_one", "gymnasium.envs.classic_control"]
    assert (taken.spec.version, taken.spec.entry_point) == ("3", "lab_of_one:HeavyCart")
    assert make_env(tmp_path / "snapshot").unwrapped.masscart == 5.0
    registered = gymnasium_registry["HeavyCart-v3"].entry_point
    assert registered.__module__ == "lab_of_one", "running the archive must not register its own class in its place"
    with pytest.raises(ConfigError, match="cannot import 'no_such_lab'"):
        take_snapshot(EnvironmentConfig(id="no_such_lab:X-v0"), tmp_path, tmp_path / "other")


def test_kwargs_that_are_not_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be JSON values"):
        take_snapshot(EnvironmentConfig(id="CartPole-v1", kwargs={"x": object()}), tmp_path, tmp_path / "snapshot")


def test_a_source_with_data_sets_is_refused(rooms: Path, tmp_path: Path) -> None:
    with (rooms / "rooms" / "episodes.bin").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ConfigError, match="hold 300 MiB, a source archive at most 256"):
        take_snapshot(rooms_config(rooms), tmp_path, tmp_path / "snapshot")

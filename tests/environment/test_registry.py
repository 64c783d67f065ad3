import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import text
from typer.testing import CliRunner

from loomrl import register_environment
from loomrl.cli.environment import app
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.registry import unregister_environment
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault
from loomrl.runs.verify_snapshot import verify_snapshot
from loomrl.storage.loomdb.database import LoomDB
from tests.support.rooms_package import write_rooms

THERMOSTAT = "rooms.thermostat:Thermostat"


def register(code: Path, version: str = "1", **changes: object) -> None:
    fields = {"max_episode_steps": 20, "reward_threshold": -1.0, "kwargs": {"drift": 0.5}, "path": code, **changes}
    register_environment("thermostat", THERMOSTAT, version, **fields)


def test_a_registered_name_goes_like_a_gymnasium_id(rooms: Path, tmp_path: Path) -> None:
    register(rooms)
    spec = take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "snapshot").spec
    assert (spec.name, spec.version, spec.entry_point) == ("thermostat", "1", THERMOSTAT)
    assert (spec.max_episode_steps, spec.reward_threshold, spec.kwargs) == (20, -1.0, {"drift": 0.5})
    assert make_env(tmp_path / "snapshot").unwrapped.drift == 0.5


class Twig:
    """No entry point but a class."""


@pytest.mark.parametrize("given", [Twig, lambda: None, None, Twig()])
def test_an_entry_point_that_is_no_text_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match="entry_point is .*; write it as text, `module:Class`"):
        register_environment("twig", given, "1")
    with pytest.raises(ConfigError, match=f"`module:Class`, here {__name__}:Twig"):
        register_environment("twig", Twig, "1")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 3, Twig])
def test_a_name_that_is_no_text_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match="`name` must be text, found"):
        register_environment(name, THERMOSTAT, "1")


def test_the_newest_version_unless_one_is_named(rooms: Path, tmp_path: Path) -> None:
    for version in ("1", "10", "2"):
        register(rooms, version, kwargs={"drift": float(version)})
    newest = take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "a").spec
    named = take_snapshot(EnvironmentConfig(id="thermostat", version="10"), tmp_path, tmp_path / "b").spec
    assert (newest.version, named.version) == ("2", "10")
    with pytest.raises(ConfigError, match="environment.version '7' of 'thermostat' is not registered"):
        take_snapshot(EnvironmentConfig(id="thermostat", version="7"), tmp_path, tmp_path / "c")


def test_equal_content_again_is_welcome(rooms: Path) -> None:
    register(rooms)
    register(rooms)
    with LoomDB.open() as database:
        assert len(database.list_environments()) == 1


@pytest.mark.parametrize("kwargs", [{"sizes": (1, 2)}, {"names": {1: "a"}}, {"deep": [({2: ()},)]}])
def test_equal_content_is_welcome_however_its_kwargs_are_written(rooms: Path, kwargs: dict) -> None:
    register(rooms, kwargs=kwargs)
    register(rooms, kwargs=kwargs)
    register(rooms, kwargs=json.loads(json.dumps(kwargs)))
    with LoomDB.open() as database:
        assert [record.kwargs for record in database.list_environments()] == [json.loads(json.dumps(kwargs))]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_episode_steps": 21}, "max_episode_steps"),
        ({"reward_threshold": None}, "reward_threshold"),
        ({"kwargs": {}}, "kwargs"),
    ],
)
def test_other_content_for_a_version_is_refused(rooms: Path, changes: dict, field: str) -> None:
    register(rooms)
    with pytest.raises(ConfigError, match=f"version '1' is registered already, with another {field}; a version is imm"):
        register(rooms, **changes)
    register(rooms, version="2", **changes)


def test_other_source_for_a_version_is_refused(rooms: Path) -> None:
    register(rooms)
    write_rooms(rooms, gain="2.0")
    with pytest.raises(ConfigError, match="with another source_digest"):
        register(rooms)


def test_a_registered_version_runs_its_own_source_for_ever(rooms: Path, tmp_path: Path) -> None:
    register(rooms)
    before = take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "before")
    write_rooms(rooms, gain="2.0")
    after = take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "after")
    assert before.digest == after.digest
    report = verify_snapshot(tmp_path / "after", tmp_path)
    assert report.changed == ["source", "dynamics"], "by name, verify looks at the code in its folder"
    of_policy = verify_snapshot(tmp_path / "after", tmp_path, EnvironmentConfig(id="thermostat"))
    assert of_policy.unchanged, "a policy's config resolves to what is registered"
    assert "register it under a new version to use it" in of_policy.remarks[0]


def test_registered_code_that_is_broken_now(rooms: Path, tmp_path: Path) -> None:
    """By name the code being worked on is judged; a policy's config keeps running what is registered."""
    register(rooms)
    take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "snapshot")
    (rooms / "rooms" / "physics.py").write_text("raise RuntimeError('half edited')\n")
    report = verify_snapshot(tmp_path / "snapshot", tmp_path)
    assert report.changed == ["source"]
    assert "RuntimeError: half edited" in report.source[0]
    of_policy = verify_snapshot(tmp_path / "snapshot", tmp_path, EnvironmentConfig(id="thermostat"))
    assert of_policy.unchanged
    assert "cannot be loaded any more: " in of_policy.remarks[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1", THERMOSTAT, "1"), "'CartPole-v1' is a Gymnasium id, usable as it is; choose another name"),
        (("loomrl/Math-v0", THERMOSTAT, "1"), "'loomrl/Math-v0' is a Gymnasium id, usable as it is"),
        (("Hopper-v1", THERMOSTAT, "1"), "'Hopper-v1' is a Gymnasium id of old, which stands for Hopper-v5; choose an"),
        (("Pendulum-v0", THERMOSTAT, "1"), "'Pendulum-v0' is a Gymnasium id of old, which stands for Pendulum-v1"),
        (("math", THERMOSTAT, "1"), "'math' is a domain of LoomRL Gym; choose another name"),
        (("tool_call", THERMOSTAT, "1"), "'tool_call' is a domain of LoomRL Gym"),
        (("", THERMOSTAT, "1"), "must not be empty"),
        (("x", THERMOSTAT, "1", 0), "max_episode_steps is 0"),
        (("x", THERMOSTAT, "1", None, None, {"a": {1, 2}}), "kwargs must be JSON values"),
        (("x", THERMOSTAT, "1", None, None, {"a": float("nan")}), "kwargs must be JSON values"),
        (("x", "nowhere:Nothing", "1"), "install the package that holds 'nowhere'"),
    ],
)
def test_what_cannot_be_registered(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_environment(*arguments)


def env_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def answer(*arguments: str) -> Any:
    """What a command that succeeds prints with `--json`."""
    result = env_command(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_commands(rooms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = ["--path", str(rooms), "--kwargs", '{"drift": 1}']
    assert answer("register", "thermostat", THERMOSTAT, "--version", "1", *folder)["kwargs"] == {"drift": 1}
    taken = answer("snapshot", "thermostat")
    assert Path(taken["folder"]).name == taken["digest"]
    listed = answer("list")
    assert [item["digest"] for item in listed["snapshots"]] == [taken["digest"]]
    assert [item["name"] for item in listed["environments"]] == ["thermostat"]
    assert answer("show", taken["digest"][:8])["spec"] == taken["spec"]
    answer("restore", taken["digest"], "restored")
    assert (tmp_path / "restored" / "source" / "rooms" / "physics.py").is_file()
    assert make_env(tmp_path / "restored").reset(seed=0)[0].shape == (2,)
    assert answer("check", "thermostat")["findings"] == []
    assert answer("verify", taken["digest"])["unchanged"]
    write_rooms(rooms, gain="0.5")
    changed = env_command("verify", taken["digest"], "--json")
    assert (changed.exit_code, json.loads(changed.stdout)["changed"]) == (1, ["source", "dynamics"])


def test_a_config_file_or_a_folder_names_the_code(rooms: Path, tmp_path: Path) -> None:
    taken = answer("snapshot", "t", "--entry-point", THERMOSTAT, "--path", str(rooms))
    assert answer("verify", taken["digest"], "--path", str(rooms))["unchanged"]
    config = Path(__file__).parents[2] / "configs" / "cartpole.yaml"
    digest = answer("snapshot", str(config))["digest"]
    assert answer("verify", digest, "--config", str(config))["unchanged"]
    refused = env_command("check", str(config), "--version", "1")
    assert "go with an id" in str(refused.exception)


def test_check_ends_with_one_where_something_is_wrong(rooms: Path) -> None:
    write_rooms(rooms, gain="nan")
    result = env_command("check", "t", "--entry-point", THERMOSTAT, "--path", str(rooms), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["findings"][0]["name"] == "observation"


def test_commands_for_people(rooms: Path, tmp_path: Path) -> None:
    register(rooms)
    assert "conforms" in env_command("check", "thermostat").stdout
    assert "entry point" in env_command("snapshot", "thermostat").stdout
    assert "thermostat" in env_command("list").stdout
    with LoomDB.open() as database:
        digest = database.list_snapshots()[0].digest
    assert env_command("verify", digest).stdout.count("unchanged") == 5
    copy = str(tmp_path / "copy")
    assert "restored to" in env_command("restore", digest, copy).stdout
    assert "is not empty; name a new folder" in str(env_command("restore", digest, copy).exception)
    missing = env_command("show", "ffffff")
    assert "no folder with a snapshot and no kept snapshot is 'ffffff'" in str(missing.exception)


def test_a_kept_snapshot_that_was_changed_is_not_used(rooms: Path) -> None:
    taken = answer("snapshot", "CartPole-v1")
    (Path(taken["folder"]) / "source.tar").write_bytes(b"")
    assert isinstance(env_command("show", taken["digest"]).exception, ArtifactError)
    assert isinstance(env_command("snapshot", "CartPole-v1").exception, ArtifactError)


BROKEN = """
import gymnasium
import numpy as np


class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails=False):
        if fails:
            raise RuntimeError("no licence")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.full(3, 0.5, np.float32), 0.0, False, False, {}
"""


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, ConfigError, r"'broken' is not registered, it does not conform: .*shape"),
        ({"fails": True}, EnvironmentFault, "the constructor raised RuntimeError: no licence"),
        ({"speed": 1}, ConfigError, "environment.kwargs of 'broken'.*it takes: fails"),
    ],
)
def test_what_does_not_work_takes_no_name(
    kwargs: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, loomrl_home: Path
) -> None:
    (tmp_path / "broken_room.py").write_text(BROKEN)
    with pytest.raises(error, match=message):
        register_environment("broken", "broken_room:Broken", "1", 10, kwargs=kwargs, path=tmp_path)
    with LoomDB.open() as database:
        assert database.list_environments() == []


def test_a_source_that_was_changed_in_loomdb_is_not_run(rooms: Path, tmp_path: Path) -> None:
    register(rooms)
    with LoomDB.open() as database, database._writing() as session:
        session.execute(text("UPDATE environments SET source = :source"), {"source": b"another archive"})
    with pytest.raises(ArtifactError, match="source archive has SHA-256 .*, recorded is"):
        take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "snapshot")


def test_what_nothing_uses_can_be_taken_back(rooms: Path, tmp_path: Path) -> None:
    register(rooms)
    register(rooms, "2", kwargs={"drift": 0.1})
    ended = CliRunner().invoke(app, ["unregister", "thermostat", "--version", "1", "--json"])
    assert (ended.exit_code, json.loads(ended.stdout)["kwargs"]) == (0, {"drift": 0.5})
    with LoomDB.open() as database:
        assert [one.version for one in database.list_environments()] == ["2"]
        database.record_snapshot(take_snapshot(EnvironmentConfig(id="thermostat"), tmp_path, tmp_path / "taken"))
    with pytest.raises(ConfigError, match="'thermostat' version '2' stays registered: 1 snapshots were taken of it"):
        unregister_environment("thermostat", "2")
    with pytest.raises(ConfigError, match="'thermostat' version '1' is not registered; see `loomrl env list`"):
        unregister_environment("thermostat", "1")
    register(rooms, "1", kwargs={"drift": 0.9})  # the name is free again, for other content
    with LoomDB.open() as database:
        assert [one.version for one in database.list_environments()] == ["2", "1"]


def test_a_base_environment_whose_constructor_takes_no_config_is_told_so(tmp_path: Path, loomrl_home: Path) -> None:
    source = "from loomrl import BaseEnvironment\n\nclass Bare(BaseEnvironment):\n    def __init__(self): ...\n"
    (tmp_path / "bare_room.py").write_text(source)
    with pytest.raises(ConfigError, match=r"must take `config`, .* need nothing else; it takes: nothing"):
        register_environment("bare", "bare_room:Bare", "1", 10, path=tmp_path)

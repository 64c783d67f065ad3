"""Archived source runs beside other versions of itself."""

import io
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env, restored_definition
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.snapshots.store import snapshots_home
from loomrl.environment.sources.source import build_archive, extract_archive, load_source
from loomrl.errors import ArtifactError
from loomrl.system.files import sha256
from tests.support.rooms_package import write_rooms


def snapshot(code: Path, folder: Path) -> Path:
    config = EnvironmentConfig(id="thermostat", entry_point="rooms.thermostat:Thermostat", path=code)
    take_snapshot(config, code, folder)
    return folder


def first_rewards(env: gymnasium.Env) -> list[float]:
    env.reset(seed=5)
    return [env.step(1)[1] for _ in range(5)]


def test_old_and_new_source_run_in_one_process(tmp_path: Path) -> None:
    code = write_rooms(tmp_path / "code", gain="1.0")
    old = snapshot(code, tmp_path / "old")
    before = first_rewards(make_env(old))
    write_rooms(code, gain="3.0")
    (code / "rooms" / "late.py").write_text("HEAT = 2.0\n")
    new = snapshot(code, tmp_path / "new")
    shutil.rmtree(code)

    old_env, new_env = make_env(old), make_env(new)
    assert first_rewards(old_env) == before
    assert first_rewards(new_env) != before
    assert first_rewards(old_env) == before, "late imports must not mix the versions"
    assert not any(name == "rooms" or name.startswith("rooms.") for name in sys.modules)


def test_an_old_gymnasium_environment_runs_when_the_installed_one_differs(tmp_path: Path) -> None:
    """The archive holds what Gymnasium was; here it is changed, as an older release would have differed."""
    folder = tmp_path / "snapshot"
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), tmp_path, folder)
    source = load_source("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    other = tmp_path / "other" / "gymnasium" / "envs" / "classic_control"
    shutil.copytree(source.locations["gymnasium.envs.classic_control"], other)
    cartpole = other / "cartpole.py"
    cartpole.write_text(cartpole.read_text().replace("self.gravity = 9.8", "self.gravity = 1.6"))
    _replace_source(folder, {"gymnasium.envs.classic_control": other})

    moon, earth = make_env(folder), gymnasium.make("CartPole-v1")
    assert (moon.unwrapped.gravity, earth.unwrapped.gravity) == (1.6, 9.8)
    moon.reset(seed=0), earth.reset(seed=0)
    assert not np.array_equal([moon.step(1)[0] for _ in range(5)], [earth.step(1)[0] for _ in range(5)])
    assert type(moon.unwrapped).__module__.startswith("_loomrl_")
    assert "gravity" not in vars(sys.modules["gymnasium.envs.classic_control.cartpole"])


def _replace_source(folder: Path, locations: dict[str, Path]) -> None:
    """What `take_snapshot` would have written had this been the source."""
    from loomrl.environment.snapshots.snapshot import DOCUMENT, content_digest, load_snapshot

    archive = build_archive(locations)
    changed = load_snapshot(folder).model_copy(update={"source_digest": sha256(archive)})
    (folder / "source.tar").write_bytes(archive)
    changed.model_copy(update={"digest": content_digest(changed)}).write(folder / DOCUMENT)


def test_restored_environments_pickle_nothing_and_vectorise(tmp_path: Path) -> None:
    from loomrl.environment.make import make_envs

    folder = snapshot(write_rooms(tmp_path / "code"), tmp_path / "snapshot")
    envs = make_envs(folder, 3)
    observation, _ = envs.reset(seed=[1, 2, 3])
    assert observation.shape == (3, 2)


def test_data_files_are_read_from_the_archive(tmp_path: Path) -> None:
    folder = snapshot(write_rooms(tmp_path / "code", gain="2.5"), tmp_path / "snapshot")
    shutil.rmtree(tmp_path / "code")
    create = restored_definition(folder).source.create
    physics = sys.modules[create.__module__.replace("thermostat", "physics")]
    assert physics.GAIN == 2.5


def test_extracted_source_that_was_changed_is_extracted_again(tmp_path: Path) -> None:
    code = write_rooms(tmp_path / "code")
    folder = snapshot(code, tmp_path / "snapshot")
    archive = (folder / "source.tar").read_bytes()
    target = snapshots_home() / "any" / "source"
    extract_archive(archive, sha256(archive), ["rooms"], target)
    (target / "rooms" / "late.py").write_text("HEAT = 100.0\n")
    extract_archive(archive, sha256(archive), ["rooms"], target)
    assert (target / "rooms" / "late.py").read_text() == "HEAT = 1.0\n"


@pytest.mark.parametrize(
    ("name", "kind"), [("../escaped.py", tarfile.REGTYPE), ("/escaped.py", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]
)
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "../../escaped.py"
        info.size = 1 if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(b"x"))
    data = buffer.getvalue()
    with pytest.raises(ArtifactError, match=f"cannot extract.*{name}"):
        extract_archive(data, sha256(data), ["rooms"], tmp_path / "deep" / "source")
    assert not list(tmp_path.rglob("*escaped.py"))
    assert not list(tmp_path.rglob("link"))


def test_two_users_modules_of_one_name_do_not_meet(tmp_path: Path) -> None:
    first = load_source("rooms.thermostat:Thermostat", write_rooms(tmp_path / "anna", gain="1.0"))
    second = load_source("rooms.thermostat:Thermostat", write_rooms(tmp_path / "bert", gain="2.0"))
    assert first.create is not second.create
    gains = [sys.modules[source.create.__module__.replace("thermostat", "physics")].GAIN for source in (first, second)]
    assert gains == [1.0, 2.0]


def test_modules_beside_the_entry_point_are_archived_too(tmp_path: Path) -> None:
    (tmp_path / "lever.py").write_text(
        "import helper\nfrom loomrl.envs import BaseEnvironment\n"
        "class Lever(BaseEnvironment):\n    force = helper.FORCE\n"
    )
    (tmp_path / "helper.py").write_text("def f():\n    import deeper\nFORCE = 3\n")
    (tmp_path / "deeper.py").write_text("")
    (tmp_path / "unrelated.py").write_text("")
    source = load_source("lever:Lever", tmp_path)
    assert source.roots == ["lever", "deeper", "helper"]
    assert source.create.force == 3


def test_import_forms(tmp_path: Path) -> None:
    """Every way to import lands inside the version."""
    package = tmp_path / "forms"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sub" / "__init__.py").write_text("__all__ = ['leaf']\n")
    (package / "sub" / "leaf.py").write_text("NAME = __name__\n")
    (package / "entry.py").write_text(
        "import os.path\nimport forms.sub.leaf\nimport forms.sub.leaf as aliased\nfrom forms.sub import leaf\n"
        "from .sub import leaf as relative\nfrom .sub.leaf import NAME\nfrom forms.sub import *\nfrom . import sub\n"
        "import json.decoder, numpy.linalg as linalg\nfrom collections.abc import Mapping\n"
        "def create():\n"
        "    from ..forms.sub import leaf as late\n"
        "    modules = (forms.sub.leaf, aliased, relative, late, sub.leaf, globals()['leaf'])\n"
        "    return {NAME, *(module.NAME for module in modules)}\n"
    )
    names = load_source("forms.entry:create", tmp_path).create()
    assert len(names) == 1
    assert next(iter(names)).endswith(".forms.sub.leaf")
    assert next(iter(names)).startswith("_loomrl_folder_")


def test_an_import_error_inside_the_code_keeps_its_cause(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from collections import nothing_like_it\n")
    with pytest.raises(Exception, match="cannot import name 'nothing_like_it'"):
        load_source("broken:X", tmp_path)
    (tmp_path / "typo.py").write_text("def :\n")
    with pytest.raises(Exception, match=r"typo\.py, line 1: invalid syntax"):
        load_source("typo:X", tmp_path)


def test_several_extract_at_once(tmp_path: Path) -> None:
    archive = (snapshot(write_rooms(tmp_path / "code"), tmp_path / "snapshot") / "source.tar").read_bytes()
    target = tmp_path / "target" / "source"
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: extract_archive(archive, sha256(archive), ["rooms"], target), range(16)))
    assert set(folders) == {target}
    assert build_archive({"rooms": target / "rooms"}) == archive
    assert [path.name for path in target.parent.iterdir()] == ["source"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    archive = (snapshot(write_rooms(tmp_path / "code"), tmp_path / "snapshot") / "source.tar").read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot extract a source archive to .*file"):
        extract_archive(archive, sha256(archive), ["rooms"], tmp_path / "file" / "below" / "source")

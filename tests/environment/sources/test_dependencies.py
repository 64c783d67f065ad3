import importlib.metadata
import platform
from pathlib import Path

import pytest

from loomrl.environment.sources.dependencies import dependency_versions
from loomrl.environment.sources.source import load_source


def versions(folder: Path, text: str, others: dict[str, str] | None = None) -> dict[str, str]:
    package = folder / "thing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "entry.py").write_text(text + "\ndef create(): ...\n")
    for name, content in (others or {}).items():
        (package / name).write_text(content)
    return dependency_versions({"thing": package}, "thing.entry")


def test_python_gymnasium_numpy_and_what_they_require(tmp_path: Path) -> None:
    found = versions(tmp_path, "")
    assert found["python"] == platform.python_version()
    assert found["gymnasium"] == importlib.metadata.version("gymnasium")
    assert found.keys() == {
        "python",
        "gymnasium",
        "numpy",
        "cloudpickle",
        "farama-notifications",
        "typing-extensions",
    }


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("import orjson", {}),
        ("import orjson.nothing as o", {}),
        ("from orjson import dumps", {}),
        ("try:\n    import orjson\nexcept ImportError:\n    orjson = None", {}),
        ("def step(self):\n    import orjson", {}),
        ("from .helper import x", {"helper.py": "import orjson"}),
        ("from . import helper", {"helper.py": "import orjson"}),
        ("import thing.helper", {"helper.py": "from thing.deeper import y", "deeper.py": "import orjson"}),
    ],
)
def test_an_import_that_the_entry_point_reaches_counts(text: str, others: dict[str, str], tmp_path: Path) -> None:
    assert "orjson" in versions(tmp_path, text, others)


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import orjson", {}),
        ("def render(self):\n    import orjson", {}),
        ("def _draw_wheel(self):\n    import orjson", {}),
        ("", {"other.py": "import orjson"}),
        ("import not_installed_anywhere", {}),
        ("from . import helper", {"helper.py": "this is (no Python"}),
    ],
)
def test_what_the_dynamics_do_not_need_does_not_count(text: str, others: dict[str, str], tmp_path: Path) -> None:
    assert "orjson" not in versions(tmp_path, text, others)


def test_a_users_module_called_like_a_package_is_not_that_package(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("def create(): ...\n")
    source = load_source("orjson:create", tmp_path)
    assert "orjson" not in dependency_versions(source.locations, "orjson")


def test_an_environment_of_the_gym_keeps_what_it_imports_of_the_gym() -> None:
    source = load_source("loomrl.gym.domains.game:Environment")
    kept = ["domains", "environment", "tasks", "held_out"]
    assert source.roots == [f"loomrl.gym.{name}" for name in kept]
    found = dependency_versions(source.locations, "loomrl.gym.domains.game")
    assert {"chess", "open-spiel"} <= found.keys()
    assert not {"sympy", "sacrebleu", "pillow"} & found.keys()
    assert load_source("loomrl.gym.velocity:HopperVelocity").roots == ["loomrl.gym.velocity", "gymnasium.envs.mujoco"]

"""The digest of a training's inputs: it follows everything the policy depends on, and nothing else."""

import importlib
import shutil
from pathlib import Path

import pytest

import loomrl
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import load_snapshot, take_snapshot
from loomrl.environment.sources.stage_code import stage_code
from loomrl.training.config import TrainingConfig
from loomrl.training.inputs import inputs_digest, software
from loomrl.types import EnvironmentSnapshot

MODULE = """
from loomrl.algorithms import ppo
from loomrl.algorithms.ppo import Config, build
NAME = "{name}"
"""
OBJECT = """
from types import SimpleNamespace
from loomrl.algorithms import ppo
from . import helper
algorithm = SimpleNamespace(NAME="{name}", Config=ppo.Config, build=ppo.build)
"""


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentSnapshot:
    folder = tmp_path_factory.mktemp("cartpole")
    config = EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1, fingerprint_steps=10)
    take_snapshot(config, folder, folder / "snapshot")
    return load_snapshot(folder / "snapshot")


def config(**values: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"total_env_steps": 3072} | values)


def test_every_input_counts(cartpole: EnvironmentSnapshot) -> None:
    digests = [
        inputs_digest(config(), cartpole),
        inputs_digest(config(seed=4), cartpole),
        inputs_digest(config(total_env_steps=99_999), cartpole),
        inputs_digest(config(), cartpole.model_copy(update={"digest": "other"})),
    ]
    assert len(set(digests)) == 4
    assert inputs_digest(config(), cartpole) == digests[0]


def test_the_code_that_counts_is_what_dvc_reruns_the_stage_for() -> None:
    assert software("ppo")["code"] == stage_code("training", "ppo")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of LoomRL's files, in place of those that run."""
    copy = tmp_path / "loomrl"
    shutil.copytree(Path(loomrl.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(loomrl, "__file__", str(copy / "__init__.py"))
    return copy


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("algorithms/sac/learner.py", {"sac"}),
        ("algorithms/compiled/dqn.py", {"dqn"}),
        ("algorithms/replay/buffer.py", {"sac", "dqn"}),
        ("language/algorithms/grpo.py", {"grpo"}),
        ("algorithms/policies/policy.py", {"ppo", "sac", "dqn", "grpo"}),
        ("serving/api/app.py", set()),
        ("training/loop.py", {"ppo", "sac", "dqn", "grpo"}),
    ],
)
@pytest.mark.long_cases(
    "algorithms/compiled/dqn.py-changed1",
    "algorithms/replay/buffer.py-changed2",
    "algorithms/policies/policy.py-changed4",
    "serving/api/app.py-changed5",
)
def test_a_file_counts_for_the_algorithms_that_import_it(
    cartpole: EnvironmentSnapshot, package: Path, file: str, changed: set[str]
) -> None:
    def digests() -> dict[str, str]:
        return {name: inputs_digest(config(algorithm=name), cartpole) for name in ("ppo", "sac", "dqn", "grpo")}

    before = digests()
    with (package / file).open("a") as opened:
        opened.write("# changed\n")
    after = digests()
    assert {name for name in before if before[name] != after[name]} == changed


def install(folder: Path, name: str, files: dict[str, str], entry_point: str) -> None:
    """What pip leaves behind for a distribution with one entry point."""
    information = {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[loomrl.algorithms]\n{name} = {entry_point}\n",
    }
    for path, text in (files | information).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize("kind", ["package", "namespace", "module"])
def test_a_plugin_counts_with_its_whole_package_and_version(
    cartpole: EnvironmentSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"loomrl_test_{kind}"
    root = {"package": name, "namespace": f"{name}/inner", "module": ""}[kind]
    if kind == "module":
        install(tmp_path, name, {f"{name}.py": MODULE.format(name=name)}, name)
        changed = f"{name}.py"
    else:
        files = {"__init__.py": "", "deep/__init__.py": "", "deep/helper.py": "", "deep/a.py": OBJECT.format(name=name)}
        dotted = root.replace("/", ".")
        install(tmp_path, name, {f"{root}/{path}": text for path, text in files.items()}, f"{dotted}.deep.a:algorithm")
        changed = f"{root}/deep/helper.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()

    def digest() -> str:
        return inputs_digest(config(algorithm=name), cartpole)

    before = digest()
    assert digest() == before
    (tmp_path / "unrelated.py").write_text("")
    assert digest() == before
    with (tmp_path / changed).open("a") as file:
        file.write("# changed")
    edited = digest()
    assert edited != before
    (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.1\n")
    assert digest() not in (before, edited)


@pytest.mark.parametrize("changed", ["orjson", "packaging"])
def test_a_plugin_counts_with_the_versions_of_what_loomrl_requires_too(
    cartpole: EnvironmentSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Such packages are not digested: neither what it imports, nor what that requires."""
    metadata = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nRequires-Dist: packaging\n"
    name = "loomrl_test_importing"
    files = {f"{name}.py": "import torch\nimport orjson\n" + MODULE.format(name=name)}
    files |= {f"{one}-1.0.dist-info/METADATA": metadata.format(one, "1.0") for one in ("orjson", "packaging")}
    install(tmp_path, name, files, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    before, of_ours = inputs_digest(config(algorithm=name), cartpole), inputs_digest(config(), cartpole)
    assert software(name)["versions"].keys() == software("ppo")["versions"].keys() | {"orjson", "packaging"}
    (tmp_path / f"{changed}-1.0.dist-info" / "METADATA").write_text(metadata.format(changed, "1.1"))
    assert inputs_digest(config(algorithm=name), cartpole) != before
    assert inputs_digest(config(), cartpole) == of_ours

"""Which of LoomRL's files a stage runs: all that are loaded, and of algorithms the configured one."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import loomrl
from loomrl.algorithms.registry import find_algorithms
from loomrl.environment.sources import stage_code as module
from loomrl.environment.sources.stage_code import CHANGES_NO_POLICY, STAGES, stage_code

PACKAGE = Path(loomrl.__file__).parent
LEARNT = STAGES[1:]
CONFIG = """
name: pole
environment: {id: CartPole-v1, backend: serial}
training: {algorithm: ALGORITHM, total_env_steps: 1024}
evaluation: {num_episodes: 2}
safety: {num_episodes: 4}
export: {}
shadow: {}
promotion: {}
"""
RUN = """
import json, sys
from pathlib import Path
from loomrl.runs.stages.__main__ import run_stage
for stage in sys.argv[1:]:
    run_stage(stage, "pole", Path.cwd())
files = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("loomrl.")]
print(json.dumps([file for file in files if file]))
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of LoomRL's."""
    monkeypatch.setattr(loomrl, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_imports_count_wherever_they_are_but_for_types(written: Path) -> None:
    write(
        written,
        {
            "runs/stages/training.py": "from loomrl.a import one\nimport loomrl.b.two as two\nimport json\n",
            "a/__init__.py": "",
            "a/one.py": "def f():\n    try:\n        from loomrl import c\n    except ImportError:\n        pass\n",
            "a/other.py": "",
            "a/table.yaml": "",
            "b/__init__.py": "from loomrl.c import name",
            "b/two.py": "if TYPE_CHECKING:\n    import loomrl.d\nelse:\n    import loomrl.e\n",
            "c.py": "import loomrl.a.one\nimport loomrl.errors",
            "d.py": "",
            "e.py": "",
            "errors.py": "import loomrl.d",
        },
    )
    found = stage_code("training", "ppo")
    assert list(found) == [
        *("a/__init__.py", "a/one.py", "a/table.yaml", "b/__init__.py", "b/two.py", "c.py", "e.py"),
        "runs/stages/training.py",
    ]
    (written / "c.py").write_text("# changed\n")
    assert {name for name, digest in stage_code("training", "ppo").items() if found[name] != digest} == {"c.py"}


def test_of_algorithms_the_configured_one_counts_and_all_where_it_is_of_others(written: Path) -> None:
    own = {
        "algorithms/ppo/__init__.py",
        "algorithms/ppo/learner.py",
        "algorithms/sac.py",
        "language/algorithms/grpo.py",
    }
    write(
        written,
        dict.fromkeys(own, "")
        | {f"runs/stages/{stage}.py": "" for stage in STAGES}
        | {"algorithms/ppo/__init__.py": "from loomrl.algorithms.ppo.learner import Learner"},
    )
    for stage in LEARNT:
        assert set(stage_code(stage, "ppo")) & own == {"algorithms/ppo/__init__.py", "algorithms/ppo/learner.py"}
        assert set(stage_code(stage, "sac")) & own == {"algorithms/sac.py"}
        assert set(stage_code(stage, "mine")) & own == own
    assert list(stage_code("environment", "mine")) == ["runs/stages/environment.py"]


def test_each_algorithm_is_named_like_its_module() -> None:
    for name in find_algorithms():
        assert len(module._algorithm(PACKAGE, name)) == 1


@pytest.mark.parametrize("stage", LEARNT)
def test_no_stage_of_one_algorithm_runs_another(stage: str) -> None:
    ppo, sac = stage_code(stage, "ppo"), stage_code(stage, "sac")
    assert not [name for name in ppo if "/sac" in name or "/dqn" in name]
    assert not [name for name in sac if "/dqn" in name]
    assert "algorithms/sac/learner.py" in sac
    assert "algorithms/compiled/ppo.py" in ppo


def test_what_the_gym_imports_of_other_rooms_counts_in_each_stage() -> None:
    """Its own files are in the snapshot. A check looks at environments and is none."""
    gym = module._imported_by((PACKAGE / "gym").rglob("*.py"), PACKAGE)
    others = {path.relative_to(PACKAGE).as_posix() for path in gym} - {"environment/check.py"}
    for stage in LEARNT:
        assert {name for name in others if not name.startswith("gym/")} <= set(stage_code(stage, "ppo"))


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.long_cases("dqn")
def test_all_that_the_stages_load_is_listed(tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "configs" / "pole.yaml").write_text(CONFIG.replace("ALGORITHM", algorithm))
    command = [sys.executable, "-c", RUN, "environment", "training"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {Path(file).relative_to(PACKAGE).as_posix() for file in json.loads(done.stdout.splitlines()[-1])}
    listed = {name for stage in ("environment", "training") for name in stage_code(stage, algorithm)}
    # The reader of configs loads each room's section, the registry of algorithms looks into both of its folders.
    by_the_way = {name for name in loaded if name.endswith("config.py") or is_empty(PACKAGE / name)}
    assert loaded - listed - CHANGES_NO_POLICY - by_the_way == set()
    assert {"environment/make.py", "training/loop.py", f"algorithms/{algorithm}/__init__.py"} <= loaded


def is_empty(path: Path) -> bool:
    """Whether a module is a docstring and nothing else."""
    return len(ast.parse(path.read_text()).body) <= 1

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "numpy",
    "gymnasium",
    "mlflow",
    "prefect",
    "dvc",
    "great_expectations",
    "pandas",
    "sqlalchemy",
    "onnxruntime",
)


def loomrl(*arguments: str, cwd: Path = ROOT, expect: int = 0) -> subprocess.CompletedProcess[str]:
    code = "from loomrl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, done.stderr
    return done


def test_the_command_line_imports_nothing_heavy_before_a_command_needs_it() -> None:
    code = f"import sys, loomrl.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command", ["run", "env", "policy", "safety", "serve", "audit", "override", "report", "gc", "backup"]
)
def test_every_command_has_help(command: str) -> None:
    assert "Usage" in loomrl(command, "--help").stdout


def test_a_config_that_is_not_in_the_project_says_where_configs_lie(tmp_path: Path) -> None:
    (tmp_path / "pole.yaml").write_text((ROOT / "configs" / "cartpole.yaml").read_text().replace("cartpole", "pole"))
    done = loomrl("run", str(tmp_path / "pole.yaml"), expect=2)
    assert "no dvc.yaml at or above" in done.stderr


def test_public_names_of_the_specification_are_importable() -> None:
    import loomrl

    for name in loomrl.__all__:
        assert getattr(loomrl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'; it has: "):
        _ = loomrl.Nothing


def test_deployments_name_flows_that_exist() -> None:
    for deployment in yaml.safe_load((ROOT / "deploy" / "prefect.yaml").read_text())["deployments"]:
        path, _, name = deployment["entrypoint"].partition(":")
        assert f"def {name}(" in (ROOT / path).read_text()


def test_workflows_run_targets_and_commands_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (ROOT / "deploy" / "ci").glob("*.yaml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands = " ".join(step["run"] for step in job["steps"] if "run" in step)
            for target in (word for line in commands.split("make ")[1:] for word in line.split()[:1]):
                assert f"\n{target}:" in makefile

"""A version is made again from its lineage, by DVC, in a clone; equal bytes are told from other bytes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.promotion import app
from loomrl.errors import ConfigError, GateRefused, LoomRLError
from loomrl.runs.stages import ORDER
from loomrl.storage.provenance import git_facts
from loomrl.storage.registry import Registry
from loomrl.storage.run_record import RunRecord, StageRecord, read_run, run_folder, write_run
from loomrl.system.files import digest_folder
from tests.support.policy_versions import config, register
from tests.support.projects import git

# Five stages that cost nothing: each copies what it is to make from a folder git tracks.
MAKE = """
import os, shutil, sys
stage, policy = sys.argv[1:]
assert "project" in os.environ["PYTHONPATH"], os.environ["PYTHONPATH"]
shutil.copytree(f"recipe/{stage}", f"artifacts/{policy}/{stage}")
"""
DVC = "\n".join(
    ["stages:"]
    + [
        f"  {stage}:\n    matrix: {{policy: [cartpole]}}\n    cmd: python make.py {stage} ${{item.policy}}\n"
        f"    deps:\n    - configs/${{item.policy}}.yaml\n"
        + (f"    - artifacts/${{item.policy}}/{before}\n" if before else "")
        + f"    outs:\n    - artifacts/${{item.policy}}/{stage}"
        for before, stage in zip((None, *ORDER), ORDER, strict=False)
    ]
)


@pytest.fixture
def project(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose run made version 1 from a commit plus an uncommitted change."""
    root = tmp_path / "work"
    (root / "configs").mkdir(parents=True)
    (root / "configs" / "cartpole.yaml").write_text("name: cartpole\n")
    (root / "dvc.yaml").write_text(DVC)
    (root / "make.py").write_text(MAKE)
    (root / ".gitignore").write_text("artifacts/\n.dvc/cache\n.dvc/tmp\n")
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    version = register(tmp_path, "run-1")
    recipe = root / "recipe"
    (tmp_path / "artifacts-run-1").rename(recipe)
    for stage, name in (("environment", "snapshot.json"), ("training", "policy.safetensors")):
        (recipe / stage).mkdir()
        (recipe / stage / name).write_text(stage)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "recipe")
    (recipe / "training" / "policy.safetensors").write_bytes(b"weights 0.0")  # what its digest in the manifest says
    monkeypatch.chdir(root)
    facts = git_facts(root)
    assert facts is not None
    assert facts.diff is not None
    stages = [
        StageRecord(name=stage, status="ran", seconds=1, verdict="", digest=digest_folder(recipe / stage))
        for stage in ORDER
    ]
    made = RunRecord(
        run_id="run-1",
        policy="cartpole",
        state="promoted",
        started="2026",
        config=config().model_dump(mode="json"),
        git_commit=facts.commit,
        git_dirty=facts.dirty,
        stages=stages,
        version=version.version,
    )
    write_run(made)
    (run_folder("run-1") / "diff.patch").write_bytes(facts.diff)
    (run_folder("run-1") / "config.yaml").write_text("name: cartpole\n")
    git(root, "checkout", "--quiet", "--", "recipe")
    return root


def test_a_rebuild_is_equal_and_touches_nothing_here(project: Path, tmp_path: Path) -> None:
    before = git(project, "status", "--porcelain")
    done = CliRunner().invoke(app, ["rebuild", "cartpole@1", "--json", "--keep", str(tmp_path / "kept")])
    assert done.exception is None, done.exception
    report = json.loads(done.stdout)
    assert report["equal"]
    assert [artifact["name"] for artifact in report["artifacts"]] == [
        "training/policy.safetensors",
        "safety/case.json",
        "export/policy.onnx",
        *(f"{stage}/" for stage in ORDER),
    ]
    assert git(project, "status", "--porcelain") == before
    assert not (project / "artifacts").exists()
    assert (tmp_path / "kept" / "artifacts" / "cartpole" / "export" / "policy.onnx").is_file()


def test_a_rebuild_in_a_hook_of_git_leaves_its_repository_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There git says by variables which repository it works on."""
    from loomrl.promotion.rebuild import rebuild

    branch = git(project, "symbolic-ref", "HEAD")
    (run_folder("run-1") / "config.yaml").unlink()  # what follows the checkout is not asked of here
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(project / ".git"))
        hook.setenv("GIT_INDEX_FILE", str(project / ".git" / "index"))
        with pytest.raises(ConfigError, match="did not get as far as stage 1"):
            rebuild(Registry().require("cartpole", "1"), Registry())
    assert git(project, "symbolic-ref", "HEAD") == branch
    assert git(project, "status", "--porcelain") == ""


def test_a_rebuild_that_differs_is_refused(project: Path) -> None:
    (run_folder("run-1") / "diff.patch").unlink()  # without the change the weights are others
    write_run(read_run("run-1").model_copy(update={"git_dirty": False}))
    done = CliRunner().invoke(app, ["rebuild", "cartpole@1"])
    assert isinstance(done.exception, GateRefused)
    assert str(done.exception) == "cartpole@1 came out different: training/policy.safetensors, training/"
    assert "different" in done.stdout


def test_a_lineage_with_holes_is_named(project: Path) -> None:
    version, complete = Registry().require("cartpole", "1"), read_run("run-1")
    from loomrl.promotion.rebuild import rebuild

    write_run(complete.model_copy(update={"git_commit": None}))
    with pytest.raises(ConfigError, match="outside git"):
        rebuild(version, Registry())
    write_run(complete)
    (run_folder("run-1") / "diff.patch").unlink()
    with pytest.raises(ConfigError, match="uncommitted changes"):
        rebuild(version, Registry())


def test_a_stage_that_fails_is_named(project: Path) -> None:
    from loomrl.promotion.rebuild import rebuild

    (run_folder("run-1") / "config.yaml").write_text("name: [\n")
    (project / "make.py").write_text("raise SystemExit(1)")
    git(project, "commit", "--quiet", "--all", "--message", "broken")
    commit = git(project, "rev-parse", "HEAD").strip()
    write_run(read_run("run-1").model_copy(update={"git_commit": commit}))
    with pytest.raises(LoomRLError, match="rebuilding failed"):
        rebuild(Registry().require("cartpole", "1"), Registry())

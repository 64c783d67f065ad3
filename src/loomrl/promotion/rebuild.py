"""Make a version again from its lineage, somewhere else, and compare digests.

A clone of the recorded commit, the recorded difference applied, the recorded config put in place, then stages 1-5
through `dvc repro` with an empty cache and a home of its own. `PYTHONPATH` names the clone's `src` first: an editable
install would import this project's code instead.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic import Field

from loomrl.errors import ConfigError, LoomRLError, ServiceError
from loomrl.runs.stages import ORDER
from loomrl.storage.provenance import git_environment
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import RunRecord, read_run, run_folder
from loomrl.system.files import digest_folder, sha256_file, write_atomic
from loomrl.system.home import config_file, project_root
from loomrl.system.schema import Document
from loomrl.types import PolicyManifest

_STDERR = 2  # what DVC prints must not mix with `--json`


class Artifact(Document):
    """One artifact, a file or a stage's whole folder: the SHA-256 digest that was `expected`, and the one that was
    found, None where the rebuild did not write it."""

    name: str  # a file, or a stage's whole folder with "/" at its end
    expected: str
    found: str | None  # None where the rebuild did not write it
    equal: bool


class RebuildReport(Document):
    """The result of rebuilding a version from its commit and config: each artifact's digests, and whether all match.

    `left_out` are files of the run that seemed to hold a secret, so that they were not kept and the rebuild lacks them.
    """

    policy: str
    version: str
    run_id: str
    commit: str
    artifacts: list[Artifact]
    equal: bool
    seconds: float
    left_out: list[str] = Field(default_factory=list)  # files of the run that seemed to hold a secret: not here


def rebuild(version: PolicyVersion, registry: Registry, keep: Path | None = None) -> RebuildReport:
    """Rebuild a version; with `keep`, a folder that must not exist yet, the rebuilt project stays there.

    Artifacts that come out otherwise are no error: the report says which.

    Raises:
        ConfigError: when the lineage is not enough: no run record here, no commit, or a difference that was not kept.
        ArtifactError: when the version's files are not what was registered.
        ServiceError: when git fails, or the registry cannot be reached.
        LoomRLError: when a stage fails in the rebuilt project.
    """
    started = time.monotonic()
    record = read_run(version.run_id)
    commit = _rebuildable(record)
    with tempfile.TemporaryDirectory(prefix="loomrl-rebuild-") as temporary:
        manifest = PolicyManifest.read(registry.download(version, Path(temporary) / "version") / "manifest.json")
        project = _checkout(record, commit, Path(temporary) / "project")
        _reproduce(project, record.policy, Path(temporary) / "home")
        artifacts = _compare(project / "artifacts" / record.policy, manifest, record)
        if keep:
            shutil.copytree(project, keep)
    return RebuildReport(
        policy=version.policy,
        version=version.version,
        run_id=record.run_id,
        commit=commit,
        artifacts=artifacts,
        equal=all(artifact.equal for artifact in artifacts),
        seconds=round(time.monotonic() - started, 3),
        left_out=sorted(record.left_out),
    )


def _rebuildable(record: RunRecord) -> str:
    if record.git_commit is None:
        raise ConfigError(f"run {record.run_id} was made outside git: nothing says which code it ran")
    is_kept = (run_folder(record.run_id) / "diff.patch").is_file()
    if record.git_dirty and not is_kept and not record.left_out:
        raise ConfigError(
            f"run {record.run_id} started from uncommitted changes that were too large to keep, or died before it kept "
            "them; commit before a run that must be rebuilt"
        )
    return record.git_commit


def _checkout(record: RunRecord, commit: str, target: Path) -> Path:
    """The run's project in a clone that shares this repository's objects; nothing here is touched."""
    root = project_root()
    top = Path(_run(["git", "-C", str(root), "rev-parse", "--show-toplevel"]).strip())
    _run(["git", "clone", "--quiet", "--shared", "--no-checkout", str(top), str(target)])
    _run(["git", "-C", str(target), "checkout", "--quiet", "--detach", commit])
    patch = run_folder(record.run_id) / "diff.patch"
    if patch.is_file():
        _run(["git", "-C", str(target), "apply", "--binary", "--whitespace=nowarn", str(patch.resolve())])
    project = target / root.relative_to(top.resolve())
    config = run_folder(record.run_id) / "config.yaml"
    if not config.is_file():
        raise ConfigError(f"{config} is missing: run {record.run_id} did not get as far as stage 1")
    write_atomic(config_file(record.policy, project), config.read_bytes())
    shutil.rmtree(project / "artifacts" / record.policy, ignore_errors=True)
    return project


def _reproduce(project: Path, policy: str, home: Path) -> None:
    environment = {
        name: value for name, value in git_environment().items() if name not in ("LOOMRL_EVENTS", "DVC_ROOT")
    }
    environment |= {
        "LOOMRL_HOME": str(home),
        "PYTHONPATH": str(project / "src"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
        "DVC_NO_ANALYTICS": "1",
    }
    # Forced and without DVC's run cache, which a machine-wide cache folder could otherwise answer from.
    command = [
        sys.executable,
        "-m",
        "dvc",
        "repro",
        "--force",
        "--no-run-cache",
        "--no-commit",
        f"{ORDER[-1]}@{policy}",
    ]
    done = subprocess.run(command, cwd=project, env=environment, stdout=_STDERR, check=False)
    if done.returncode != 0:
        raise LoomRLError(
            f"rebuilding failed: `dvc repro {ORDER[-1]}@{policy}` ended with {done.returncode} in a clone of the "
            "recorded commit; its output above names the stage"
        )


def _compare(folder: Path, manifest: PolicyManifest, record: RunRecord) -> list[Artifact]:
    """The three files a version stands for, then every stage's whole folder."""
    files = {
        "training/policy.safetensors": manifest.policy_digest,
        "safety/case.json": manifest.case_sha256,
        "export/policy.onnx": manifest.onnx_sha256,
    }
    found = []
    for name, expected in files.items():
        found.append(_artifact(name, expected, sha256_file(folder / name) if (folder / name).is_file() else None))
    for stage in record.stages:
        if stage.name in ORDER and stage.digest:
            whole = digest_folder(folder / stage.name) if (folder / stage.name).is_dir() else None
            found.append(_artifact(f"{stage.name}/", stage.digest, whole))
    return found


def _artifact(name: str, expected: str, found: str | None) -> Artifact:
    return Artifact(name=name, expected=expected, found=found, equal=expected == found)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=git_environment(), check=False)
    if done.returncode != 0:
        raise ServiceError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout

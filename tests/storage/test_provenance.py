"""What git and DVC say about a run."""

import subprocess
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError
from loomrl.storage import provenance
from tests.support.projects import git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "repository" / "project"
    (root / "artifacts").mkdir(parents=True)
    (root / "code.py").write_text("one\n")
    (root / ".gitignore").write_text("secret.txt\nartifacts/\n")
    git(root.parent, "init", "--quiet", "--initial-branch=trunk")
    git(root.parent, "add", "--all")
    git(root.parent, "commit", "--quiet", "--message", "first")
    return root


def test_outside_git_and_before_the_first_commit_there_is_nothing(tmp_path: Path) -> None:
    assert provenance.git_facts(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert provenance.git_facts(tmp_path) is None


def test_a_clean_tree_is_clean(project: Path) -> None:
    found = provenance.git_facts(project)
    assert found is not None
    assert (found.commit, found.branch) == (git(project, "rev-parse", "HEAD").strip(), "trunk")
    assert (found.dirty, found.diff) == (False, b"")
    git(project, "checkout", "--quiet", "--detach")
    detached = provenance.git_facts(project)
    assert detached is not None
    assert detached.branch is None


def test_the_difference_rebuilds_the_tree(project: Path, tmp_path: Path) -> None:
    """Changed, deleted, new and binary files; not what git ignores, not the stages' outputs."""
    (project / "code.py").write_text("two\n")
    (project / "new näme.py").write_text("new\n")
    (project / "weights.bin").write_bytes(bytes(range(256)) * 4)
    (project / "secret.txt").write_text("ignored")
    (project / "artifacts" / "big.bin").write_bytes(b"output")
    status, objects = git(project, "status", "--porcelain"), git(project, "count-objects")
    found = provenance.git_facts(project)
    assert found is not None
    assert found.dirty
    assert (git(project, "status", "--porcelain"), git(project, "count-objects")) == (status, objects), (
        "git is untouched"
    )
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project.parent), str(clone))
    subprocess.run(["git", "apply", "--binary"], cwd=clone, input=found.diff, check=True)
    names = {path.relative_to(clone / "project").as_posix() for path in (clone / "project").rglob("*")}
    assert names == {"code.py", ".gitignore", "new näme.py", "weights.bin"}
    assert (clone / "project" / "weights.bin").read_bytes() == bytes(range(256)) * 4


SECRETS = {
    ".env": "HOST=example.org\n",
    "deep/.env.production": "A=1\n",
    "server.pem": "",
    "settings.py": 'password = "correct horse battery staple"\n',  # pragma: allowlist secret
    "notes.txt": "-----BEGIN OPENSSH PRIVATE KEY-----\n",  # pragma: allowlist secret
    "url näme.py": "URL = 'postgresql://loom:xkcd936horse@db/loom'\n",  # pragma: allowlist secret
}
HARMLESS = {
    ".env.example": "TOKEN=\n",
    "digests.py": f"DIGEST = '{'9f86d081884c7d65' * 4}'\n",
    "reads.py": "password = os.environ['PASSWORD']\n",
    "says.md": "postgresql://user:password@host/database\n",
    "marked.py": "password = 'only a test of ours'  # pragma: allowlist secret\n",
}


def test_untracked_files_that_seem_to_hold_a_secret_are_left_out_and_named(project: Path) -> None:
    for name, content in (SECRETS | HARMLESS).items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(content)
    found = provenance.git_facts(project)
    assert found is not None
    assert found.diff is not None
    added = {line.split(" b/project/")[1] for line in found.diff.decode().splitlines() if line.startswith("diff ")}
    assert added == set(HARMLESS)
    assert set(found.left_out) == {f"project/{name}" for name in SECRETS}
    assert found.left_out["project/.env"] == "its name"
    assert found.left_out["project/settings.py"] == "line 1: Secret Keyword"
    assert not [content for content in SECRETS.values() if content.strip() and content in found.diff.decode()]


def test_what_was_added_to_the_index_and_not_committed_is_looked_at(project: Path) -> None:
    (project / ".env").write_text("TOKEN=xkcd936\n")
    (project / "id_rsa.bak").write_text("no key\n")
    git(project, "add", "--force", ".env")
    found = provenance.git_facts(project)
    assert found is not None
    assert (found.diff, set(found.left_out)) == (b"", {"project/.env", "project/id_rsa.bak"})


def test_a_tree_that_differs_by_a_secret_alone_is_not_clean(project: Path) -> None:
    (project / ".env").write_text("A=1\n")
    found = provenance.git_facts(project)
    assert found is not None
    assert (found.dirty, found.diff, found.left_out) == (True, b"", {"project/.env": "its name"})


def test_a_tracked_file_is_kept_whatever_it_is_called(project: Path) -> None:
    """What git has is no secret of this machine; a change of it is part of the run."""
    (project / ".env").write_text("A=1\n")
    git(project, "add", ".env")
    git(project, "commit", "--quiet", "--message", "with")
    (project / ".env").write_text("A=2\n")
    found = provenance.git_facts(project)
    assert found is not None
    assert b"+A=2" in (found.diff or b"")
    assert not found.left_out


def test_a_huge_difference_is_not_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", 10)
    (project / "code.py").write_text("a change of more than ten bytes\n")
    found = provenance.git_facts(project)
    assert found is not None
    assert (found.dirty, found.diff) == (True, None)


def test_lock_entries_are_those_of_the_policy(tmp_path: Path) -> None:
    assert provenance.lock_entries(tmp_path, "cartpole") == {}
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  training@cartpole:\n    cmd: a\n    outs:\n    - {path: artifacts/x, md5: abc.dir}\n"
        "  training@cartpole2:\n    cmd: b\n"
    )
    found = provenance.lock_entries(tmp_path, "cartpole")
    assert list(found) == ["training"]
    assert provenance.output_hashes(found["training"]) == {"artifacts/x": "abc.dir"}


@pytest.mark.parametrize("content", ["<<<<<<< HEAD\nstages:\n", "- a list\n"])
def test_a_damaged_lock_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "dvc.lock").write_text(content)
    with pytest.raises(ArtifactError, match=r"dvc\.lock cannot be read"):
        provenance.lock_entries(tmp_path, "cartpole")

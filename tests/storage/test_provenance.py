"""What git and DVC say about a run."""

import subprocess
from collections.abc import Callable
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


@pytest.mark.parametrize(
    "setting",
    ["diff.noprefix=true", "diff.relative=true", "color.ui=always", "diff.orderFile=missing", "diff.external=false"],
)
def test_the_difference_applies_whatever_a_user_set_for_git(project: Path, tmp_path: Path, setting: str) -> None:
    name, _, value = setting.partition("=")
    git(project, "config", name, value)
    (project / "code.py").write_text("two\n")
    (project / ".env").write_text("TOKEN=xkcd936\n")
    git(project, "add", "--force", ".env")
    found = provenance.git_facts(project)
    assert found is not None
    assert set(found.left_out) == {"project/.env"}
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project.parent), str(clone))
    subprocess.run(["git", "apply", "--binary"], cwd=clone, input=found.diff, check=True)
    assert (clone / "project" / "code.py").read_text() == "two\n"


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


VERSIONS = {b"at the root", b"before the move", b"of the side", b"of the main line", b"resolved by hand"}


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A project that was moved, with a merge whose conflict was resolved to what neither side held."""
    top, project = tmp_path / "history", tmp_path / "history" / "project"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch", "trunk")
    commit(top / "dvc.lock", "at the root")
    commit(top / "dvc.lock", "before the move")
    project.mkdir()
    git(top, "mv", "dvc.lock", "project/dvc.lock")
    git(top, "commit", "--quiet", "--message", "move")
    git(top, "checkout", "--quiet", "-b", "side")
    commit(project / "dvc.lock", "of the side")
    git(top, "checkout", "--quiet", "trunk")
    commit(project / "dvc.lock", "of the main line")
    git(top, "merge", "--quiet", "--strategy", "ours", "--no-commit", "side")
    commit(project / "dvc.lock", "resolved by hand")
    return project


def commit(path: Path, content: str) -> None:
    path.write_text(content)
    git(path.parent, "add", "--force", path.name)
    git(path.parent, "commit", "--quiet", "--message", content)


def versions(folder: Path) -> set[bytes]:
    return set(provenance.versions_in_git(folder, "dvc.lock", "*.dvc"))


SETTINGS = (
    *("log.diffMerges=off", "log.diffMerges=combined", "log.diffMerges=dense-combined", "log.showRoot=false"),
    *("log.follow=true", "diff.relative=true", "diff.renames=copies", "diff.orderFile=missing", "color.ui=always"),
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_history_is_read_whatever_a_user_set_for_git(history: Path, setting: str) -> None:
    name, _, value = setting.partition("=")
    git(history, "config", name, value)
    assert versions(history) == VERSIONS


@pytest.mark.parametrize("name", ["LITERAL", "GLOB", "NOGLOB", "ICASE"])
def test_patterns_are_patterns_whatever_the_environment_says(
    history: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"GIT_{name}_PATHSPECS", "1")
    assert versions(history) == VERSIONS


OF_ANOTHER = {
    "GIT_DIR": ".git",
    "GIT_WORK_TREE": ".",
    "GIT_COMMON_DIR": ".git",
    "GIT_INDEX_FILE": ".git/index",
    "GIT_OBJECT_DIRECTORY": ".git/objects",
    "GIT_SHALLOW_FILE": "shallow",
    "GIT_GRAFT_FILE": "grafts",
}


@pytest.mark.parametrize("name", OF_ANOTHER)
def test_git_is_asked_of_the_folder_whatever_the_environment_says(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As in a hook, where git says by such variables which repository it works on."""
    head = git(history, "rev-parse", "HEAD").strip()
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    commit(other / "dvc.lock", "of another")
    for file in ("shallow", "grafts"):
        (other / file).write_text(f"{head}\n")  # a commit without parents
    (history / "dvc.lock").write_text("staged")
    git(history, "add", "dvc.lock")
    monkeypatch.setenv(name, str(other / OF_ANOTHER[name]))
    assert versions(history) == VERSIONS | {b"staged"}
    found = provenance.git_facts(history)
    assert found is not None
    assert found.commit == head


def test_a_replaced_commit_is_read_and_so_is_what_replaces_it(history: Path) -> None:
    git(history, "checkout", "--quiet", "--orphan", "short")
    commit(history / "dvc.lock", "a short history")
    short = git(history, "rev-parse", "HEAD").strip()
    git(history, "checkout", "--quiet", "--force", "trunk")
    git(history, "branch", "--quiet", "-D", "short", "side")
    git(history, "reflog", "expire", "--expire=now", "--all")
    git(history, "replace", "trunk", short)
    assert versions(history) == VERSIONS | {b"a short history"}


def stashes(project: Path) -> None:
    for content in ("kept", "kept too"):
        (project / "dvc.lock").write_text(content)
        git(project, "stash", "--quiet")


def amended(project: Path) -> None:
    commit(project / "dvc.lock", "kept")
    git(project, "checkout", "--quiet", "-b", "short-lived")
    commit(project / "dvc.lock", "kept too")
    git(project, "checkout", "--quiet", "trunk")
    git(project, "branch", "--quiet", "-D", "short-lived")
    git(project, "reset", "--quiet", "--hard", "HEAD~1")


def staged(project: Path) -> None:
    (project / "dvc.lock").write_text("kept")
    (project / "new.dvc").write_text("kept too")
    (project / "named.dvc").write_text("not yet")
    git(project, "add", "dvc.lock", "new.dvc")
    git(project, "add", "--intent-to-add", "named.dvc")
    (project / "dvc.lock").write_text("of the work tree alone")
    (project / "new.dvc").unlink()


def staged_in_a_linked_tree(project: Path) -> None:
    """Both of its own: the index, and the reflog of its HEAD. Its folder need not be there."""
    linked = project.parents[1] / "linked"
    git(project, "worktree", "add", "--quiet", "--detach", str(linked))
    git(linked, "update-index", "--split-index")
    commit(linked / "project" / "dvc.lock", "kept")
    git(linked, "reset", "--quiet", "--hard", "HEAD~1")
    (linked / "project" / "dvc.lock").write_text("kept too")
    git(linked, "add", "--all")
    linked.rename(linked.with_name("not there"))


def set_aside(project: Path) -> None:
    """By a rebase that waits for a conflict to be resolved, and, in a linked tree, by a merge that does."""
    for folder, content in ((project, "kept"), (project.parents[1] / "linked" / "project", "kept too")):
        if folder != project:
            git(project, "worktree", "add", "--quiet", "--detach", str(folder.parent), "ORIG_HEAD")
        (folder / "other.txt").write_text("base")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "base")
        (folder / "other.txt").write_text("theirs")
        git(folder, "commit", "--quiet", "--all", "--message", "theirs")
        theirs = git(folder, "rev-parse", "HEAD").strip()
        git(folder, "reset", "--quiet", "--hard", "HEAD~1")
        (folder / "other.txt").write_text("ours")
        git(folder, "commit", "--quiet", "--all", "--message", "ours")
        (folder / "dvc.lock").write_text(content)
        with pytest.raises(subprocess.CalledProcessError):
            git(folder, *(("rebase",) if folder == project else ("merge",)), "--autostash", theirs)
        assert content not in (folder / "dvc.lock").read_text()


@pytest.mark.parametrize("keep", [stashes, amended, staged, staged_in_a_linked_tree, set_aside])
def test_what_git_can_give_back_is_read(history: Path, keep: Callable[[Path], None]) -> None:
    keep(history)
    assert versions(history) - {b""} == VERSIONS | {b"kept", b"kept too"}


def test_a_repository_without_commits_holds_what_is_staged(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert versions(tmp_path) == set()
    (tmp_path / "dvc.lock").write_text("staged")
    git(tmp_path, "add", "dvc.lock")
    assert versions(tmp_path) == {b"staged"}


def test_lock_entries_are_those_of_the_policy(tmp_path: Path) -> None:
    assert provenance.lock_entries(tmp_path, "cartpole") == {}
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  training@cartpole:\n    cmd: a\n    outs:\n    - {path: artifacts/x, md5: abc.dir}\n"
        "  training@cartpole2:\n    cmd: b\n"
    )
    found = provenance.lock_entries(tmp_path, "cartpole")
    assert list(found) == ["training"]
    assert provenance.output_hashes(found["training"]) == {"artifacts/x": "abc.dir"}


@pytest.mark.parametrize("content", ["<<<<<<< HEAD\nstages:\n", "- a list\n", "stages: 2001-99-99\n"])
def test_a_damaged_lock_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "dvc.lock").write_text(content)
    with pytest.raises(ArtifactError, match=r"dvc\.lock cannot be read"):
        provenance.lock_entries(tmp_path, "cartpole")

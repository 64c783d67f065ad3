"""What a run was made from: the git commit, what differed from it, and DVC's lock entries."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError, ServiceError
from loomrl.system.security.secret_files import suspects
from loomrl.types import Json

MAX_DIFF_BYTES = 50_000_000
# What a hook or a shell may say of another repository, or of patterns; each would hide what a folder's own one holds.
# Settings given through the environment stay: `safe.directory` may be among them.
_MISLEADING = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_INDEX_FILE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE"),
    *("GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE", "GIT_INTERNAL_SUPER_PREFIX"),
    *("GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
}
_NO_VALUE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_SET_ASIDE = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")  # files of a git folder


@dataclass(frozen=True)
class GitFacts:
    """The state of a git work tree. `dirty`: something differs from `commit`, files that git does not track
    included."""

    commit: str
    branch: str | None  # None where HEAD is detached
    dirty: bool
    diff: bytes | None  # applies with `git apply --binary`; None when it is larger than MAX_DIFF_BYTES
    left_out: dict[str, str]  # untracked files that seem to hold a secret, below the top of the tree -> why


def git_facts(project: Path) -> GitFacts | None:
    """Commit and differences of the work tree that holds `project`; None outside git or before the first commit.

    The difference includes files git does not track yet (a new algorithm, say) and binary ones, but not what git
    ignores, which the stages' outputs are among, nor untracked files that seem to hold a secret.

    Raises:
        ServiceError: when git is not installed, or fails in a repository.
    """
    top = _fact(project, "rev-parse", "--show-toplevel")
    commit = _fact(project, "rev-parse", "--verify", "--quiet", "HEAD")
    if top is None or commit is None:
        return None
    branch = _fact(project, "symbolic-ref", "--short", "--quiet", "HEAD")
    root = Path(top)
    left_out = _secrets(root)
    diff = _diff(root, left_out)
    kept = diff if len(diff) <= MAX_DIFF_BYTES else None
    return GitFacts(commit, branch or None, bool(diff or left_out), kept, left_out)


def lock_entries(project: Path, policy: str) -> dict[str, Json]:
    """Stage name -> its entry in `dvc.lock`, of one policy; empty before the first `dvc repro`.

    Raises:
        ArtifactError: when `dvc.lock` is not YAML of stages, for example left with merge conflicts.
    """
    import yaml

    path = project / "dvc.lock"
    if not path.is_file():
        return {}
    try:
        stages = (parse_yaml(path.read_text()) or {}).get("stages") or {}
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}; restore it with `git checkout dvc.lock`") from error
    suffix = f"@{policy}"
    return {name.removesuffix(suffix): entry for name, entry in stages.items() if name.endswith(suffix)}


def parse_yaml(text: str | bytes) -> Any:
    """What YAML of DVC's says, as plain values; None where it is empty. Raises `yaml.YAMLError` where it is none."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time, where the library is there
    try:
        return yaml.load(text, loader)
    except _NO_VALUE as error:  # of a scalar that is not what it seems, as the date 2001-99-99; or nested too deep
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error


def output_hashes(entry: Json) -> dict[str, str]:
    """Path -> DVC's hash of each output of one lock entry: MD5, with `.dir` behind it for a folder."""
    outs: list[dict[str, Any]] = entry.get("outs", [])
    return {out["path"]: out["md5"] for out in outs if "md5" in out}


def _secrets(top: Path) -> dict[str, str]:
    """Among what the commit does not have, whether or not it was added to git's index since."""
    untracked = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    added = _git(top, "diff-index", "--name-only", "--diff-filter=A", "--no-renames", "-z", "HEAD")
    names = [os.fsdecode(name) for name in (untracked + added).split(b"\0") if name]
    return {path.relative_to(top).as_posix(): why for path, why in suspects(top / name for name in names).items()}


def _diff(top: Path, left_out: Iterable[str]) -> bytes:
    """The work tree against HEAD, through an index and an object store of its own: git's stay untouched."""
    objects = _git(top, "rev-parse", "--path-format=absolute", "--git-path", "objects").decode().strip()
    with tempfile.TemporaryDirectory(prefix="loomrl-diff-") as temporary:
        environment = {
            "GIT_INDEX_FILE": f"{temporary}/index",
            "GIT_OBJECT_DIRECTORY": temporary,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        _git(top, "read-tree", "HEAD", environment=environment)
        without = (f":(exclude,literal){name}" for name in left_out)
        _git(top, "add", "--all", "--", ".", *without, environment=environment)
        # Not `git diff`: by a user's settings that gives what no `git apply` takes.
        options = ("--cached", "--binary", "--find-renames", "--no-ext-diff")
        return _git(top, "diff-index", *options, "HEAD", environment=environment)


def lies_in_repository(folder: Path) -> bool:
    """Whether a `.git` stands in a folder or above it, be it one that git cannot read."""
    folder = folder.resolve()
    return any(os.path.lexists(one / ".git") for one in (folder, *folder.parents))


def other_work_trees(folder: Path) -> list[Path]:
    """The other work trees of the repository around a folder, as `git worktree list` has them, that are there.

    Raises:
        ServiceError: when git fails, as outside of a repository, or is not installed.
    """
    listed = _git(folder, "worktree", "list", "--porcelain", "-z").split(b"\0")
    found = [Path(os.fsdecode(line.removeprefix(b"worktree "))) for line in listed if line.startswith(b"worktree ")]
    own = _fact(folder, "rev-parse", "--show-toplevel")
    return [path for path in found if path.is_dir() and (own is None or not path.samefile(own))]


def versions_in_git(folder: Path, *names: str) -> list[bytes]:
    """What files of these names hold anywhere in the repository around a folder, in what git's own garbage collection
    keeps, each content once:

    - any commit of a branch, tag or other ref, and of the HEAD of any work tree;
    - any commit of their reflogs: all stashes stand there but the last one, and what was amended, rebased or reset away
      and can still be restored, until git drops it (`gc.reflogExpire`: by default after 90 days, or 30);
    - what a rebase or merge that is not finished has set aside (its autostash);
    - the index of any work tree.

    Replaced commits (`git replace`) are read, and so are those that replace them. The commands are git's plumbing,
    which a user's settings for `git log` and `git diff` do not alter. A name is a pattern of git, such as `*.dvc`.

    Raises:
        ServiceError: when git fails, as outside of a repository, or is not installed.
    """
    patterns = ["--", *(f":(top,glob)**/{name}" for name in names)]
    git_folders = _git_folders(folder)
    digests = {digest for one in git_folders for digest in _staged(folder, one, patterns)}
    aside = [path.read_text().strip() for one in git_folders for name in _SET_ASIDE if (path := one / name).is_file()]
    originals = {"GIT_NO_REPLACE_OBJECTS": "1"}
    commits = _git(folder, "rev-list", "--all", "--reflog", *aside, environment=originals)
    every = ("--stdin", "--no-commit-id", "--root", "-m", "-r", "--no-renames", "--raw", "-z")
    changes = _git(folder, "diff-tree", *every, *patterns, environment=originals, given=commits)
    for change in changes.split(b"\0")[:-1:2]:  # between them stand paths
        _, mode, _, digest, _ = change.split()
        if _is_content(mode):
            digests.add(digest)
    return _contents(folder, digests)


def _git_folders(folder: Path) -> list[Path]:
    """The repository's own, and that of each linked work tree, which need not be there itself."""
    common = _git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir").removesuffix(b"\n")
    own = Path(os.fsdecode(common))
    return [own, *own.glob("worktrees/*")]


def _staged(folder: Path, git_folder: Path, patterns: list[str]) -> Iterator[bytes]:
    """Digests of what an index holds; of a conflict, those of all its sides."""
    listed = _git(folder, "ls-files", "--stage", "-z", *patterns, environment={"GIT_DIR": str(git_folder)})
    for entry in listed.split(b"\0")[:-1]:
        mode, digest, _ = entry.split(maxsplit=2)
        if _is_content(mode):
            yield digest


def _is_content(mode: bytes) -> bool:
    return mode.startswith((b"10", b"12"))  # a file or link, no folder, no submodule and not nothing


def _contents(folder: Path, digests: Iterable[bytes]) -> list[bytes]:
    given = b"".join(digest + b"\n" for digest in sorted(digests))
    contents = _git(folder, "cat-file", "--batch", environment={"GIT_NO_REPLACE_OBJECTS": "1"}, given=given)
    versions, start = list[bytes](), 0
    while start < len(contents):
        first = contents.index(b"\n", start) + 1  # of what follows "DIGEST KIND SIZE"
        found = contents[start:first].split()
        if len(found) != 3:
            raise ServiceError(f"git misses object {found[0].decode()} of {folder}; see `git fsck`")
        size = int(found[2])
        versions.append(contents[first : first + size])
        start = first + size + 1
    return versions


def git_environment() -> dict[str, str]:
    """The environment of this process without what would have git work on another repository than a folder's own, as
    the variables do that git sets for its hooks."""
    return {name: value for name, value in os.environ.items() if name not in _MISLEADING}


def _fact(folder: Path, *arguments: str) -> str | None:
    """What git says; None where that it fails is an answer."""
    done = _run_git(folder, *arguments)
    return None if done.returncode else done.stdout.decode().strip()


def _git(folder: Path, *arguments: str, environment: dict[str, str] | None = None, given: bytes | None = None) -> bytes:
    """git's standard output, `given` its input; raises `ServiceError` where it fails."""
    done = _run_git(folder, *arguments, environment=environment, given=given)
    if done.returncode:
        raise ServiceError(f"`git {' '.join(arguments)}` failed in {folder}: {done.stderr.decode().strip()}")
    return done.stdout


def _run_git(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", "core.quotepath=off", "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            env={**git_environment(), "LC_ALL": "C", **(environment or {})},
            check=False,
        )
    except FileNotFoundError as error:
        raise ServiceError("git is not installed; install it, provenance is read from it") from error

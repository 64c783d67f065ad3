"""What gc would remove, what it never removes, and that it asks first."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from filelock import FileLock
from typer.testing import CliRunner, Result

from loomrl.cli import upkeep as commands
from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.audit.heads import anchors
from loomrl.storage.audit.log import AuditLog, audit_folder
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import segments
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.storage.run_record import RunRecord, StageRecord, run_folder, write_run
from loomrl.storage.upkeep.dvc_cache import cache_garbage
from tests.support.policy_versions import config, register
from tests.support.projects import git

OLD = time.time() - 30 * 86_400


@pytest.fixture(autouse=True)
def _outside_a_project(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gc(*arguments: str) -> Result:
    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, ["gc", *arguments])


def found(*arguments: str) -> dict[str, list[str]]:
    """Kind -> paths under the home."""
    done = gc("--json", *arguments)
    assert done.exception is None, done.exception
    kinds: dict[str, list[str]] = {}
    for item in json.loads(done.stdout)["items"]:
        kinds.setdefault(item["kind"], []).append(Path(item["path"]).relative_to(os.environ["LOOMRL_HOME"]).as_posix())
    return kinds


def age(folder: Path, when: float = OLD) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (when, when))


def make(path: Path, size: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def add_run(number: int, state: str = "refused", version: str | None = None) -> Path:
    write_run(
        RunRecord(
            run_id=f"20260101-00000{number}-abc",
            policy="cartpole",
            state=state,
            started="2026",
            config=config().model_dump(mode="json"),
            version=version,
        )
    )
    folder = run_folder(f"20260101-00000{number}-abc")
    for name in (
        "events/training.jsonl",
        "version/policy.onnx",
        "artifacts/cartpole/export/policy.onnx",
        "report.html",
    ):
        make(folder / name)
    age(folder)
    return folder


def test_an_empty_home_has_nothing_to_remove() -> None:
    assert found() == {}
    assert "nothing to remove" in gc().stdout


def test_old_checkpoints_and_sources_go_only_with_yes(ready_home: Path) -> None:
    old, new = ready_home / "checkpoints" / "old", ready_home / "checkpoints" / "new"
    busy = ready_home / "checkpoints" / "busy"
    for folder in (old, new, busy):
        make(folder / "step-000000001000" / "arrays.safetensors", 1_000)
        make(folder / ".lock", 0)
    archive = make(ready_home / "snapshots" / "abc" / "source.tar")
    source = make(ready_home / "snapshots" / "abc" / "source" / "env.py").parent
    for folder in (old, busy, source):
        age(folder)
    with FileLock(busy / ".lock"):
        age(busy)
        assert found() == {"checkpoints": ["checkpoints/old"], "restored source": ["snapshots/abc/source"]}
        assert old.is_dir(), "showing removes nothing"
        shown = gc()
        assert "could be freed: add --yes" in shown.stdout
        assert "removed 2 items" in gc("--yes").stdout
    assert not old.exists()
    assert not source.exists()
    assert new.is_dir()
    assert busy.is_dir()
    assert archive.is_file()


def test_runs_keep_their_records_and_what_a_version_came_from(ready_home: Path, tmp_path: Path) -> None:
    folders = [add_run(number) for number in range(5)]
    version = register(tmp_path, "20260101-000000-abc")
    age(folders[0])
    assert version.run_id == folders[0].name
    removed = found("--yes")["run leftover"]
    assert sorted(removed) == [
        f"runs/{folders[0].name}/events",
        f"runs/{folders[0].name}/version",
        f"runs/{folders[1].name}/artifacts",
        f"runs/{folders[1].name}/events",
        f"runs/{folders[1].name}/version",
    ]
    assert (folders[0] / "artifacts").is_dir(), "a version came from it"
    for folder in folders:
        assert (folder / "record.json").is_file()
        assert (folder / "report.html").is_file()


def test_a_waiting_run_keeps_everything(ready_home: Path) -> None:
    folders = [add_run(number, state="waiting" if number == 0 else "refused") for number in range(4)]
    assert found() == {}
    assert folders[0].is_dir()


def test_downloads_go_unless_an_alias_names_them(ready_home: Path, tmp_path: Path) -> None:
    register(tmp_path, "run-1")
    register(tmp_path, "run-2", bias=1.0)
    Registry().set_aliases("cartpole", {CHAMPION: "2"})
    for version in "12":
        make(ready_home / "versions" / "cartpole" / version / "policy.onnx")
    assert found() == {"downloaded version": ["versions/cartpole/1"]}


def _decide(log: AuditLog, version: str) -> None:
    log.append([record("decision", decision_id=None, policy="cartpole", version=version, action=[0.0])])


def test_audit_segments_leave_from_the_start_and_the_chain_still_verifies(ready_home: Path, tmp_path: Path) -> None:
    """Versions 1 (registered) and 9 (not): segments are opened by restarts of the server."""
    register(tmp_path, "run-1")
    for version in ("9", "9", "1", "9", "1"):
        log = AuditLog("cartpole")
        _decide(log, version)
        log.close()
    chain = audit_folder("cartpole") / "server-0"
    names = [path.stem for path in segments(chain)]
    assert found()["audit segment"] == [f"audit/cartpole/server-0/{name}.jsonl" for name in names[:2]]
    assert found("--yes")["audit segment"]
    assert [path.stem for path in segments(chain)] == names[2:], "the third holds a decision of a registered version"
    with LoomDB.open() as db:
        known = anchors(db, "cartpole/server-0")
    report = verify_chain(chain, known, demand_signed=True)
    assert (report.findings, report.first_sequence) == ([], 4)
    assert [note.split(" at ")[0] for note in report.notes] == [
        "records 0 to 1 are no longer kept: removed", "records 2 to 3 are no longer kept: removed"
    ]  # fmt: skip
    assert all("by loomrl gc, " in note and "no decision in it" in note for note in report.notes)
    assert not verify_chain(chain, [one for one in known if one.kind != "removal"]).intact
    log = AuditLog("cartpole")
    _decide(log, "1")
    log.close()
    assert verify_chain(chain, known).intact


def test_mirrors_of_a_registered_challenger_stay(ready_home: Path, tmp_path: Path) -> None:
    register(tmp_path, "run-1")
    for version in ("9", "1", "9"):
        log = AuditLog("cartpole", "server-0-shadow")
        log.append([record("shadow", decision_id="a-1", policy="cartpole", version=version, acting_version="8")])
        log.close()
    assert found()["audit segment"] == ["audit/cartpole/server-0-shadow/000001.jsonl"]


def test_old_decisions_of_versions_without_an_alias_go_only_when_asked(ready_home: Path, tmp_path: Path) -> None:
    register(tmp_path, "run-1")
    register(tmp_path, "run-2", bias=1.0)
    Registry().set_aliases("cartpole", {CHAMPION: "2"})
    for version in ("1", "2", "1"):
        log = AuditLog("cartpole")
        _decide(log, version)
        log.close()
    age(audit_folder("cartpole"))
    assert "audit segment" not in found()
    assert found("--audit-days", "90").get("audit segment") is None
    assert found("--audit-days", "7")["audit segment"] == ["audit/cartpole/server-0/000001.jsonl"]


def test_a_damaged_audit_log_is_left_alone(ready_home: Path) -> None:
    for _ in range(3):
        log = AuditLog("cartpole")
        _decide(log, "9")
        log.close()
    first = segments(audit_folder("cartpole") / "server-0")[0]
    first.write_bytes(first.read_bytes().replace(b'"version":"9"', b'"version":"8"'))
    assert found() == {}


def test_nothing_is_removed_while_a_life_cycle_runs(ready_home: Path) -> None:
    with FileLock(ready_home / "project.lock"):
        assert isinstance(gc("--yes").exception, ConfigError)
    add_run(0, state="running")
    script = (
        "import sys, time; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    alive = run_folder("20260101-000000-abc") / "alive.lock"
    holder = subprocess.Popen([sys.executable, "-c", script, str(alive)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert "is going on" in str(gc().exception)
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    assert gc().exception is None


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_cache_keeps_what_commits_runs_and_the_work_tree_need(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four states of one output: committed, of a run only, of nothing, and in the work tree."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    git(root, "init", "--quiet")
    dvc("init", "--quiet")
    (root / "params.yaml").write_text("value: 0\n")
    (root / "dvc.yaml").write_text(
        "stages:\n  export@cartpole:\n    cmd: mkdir -p out && cp params.yaml out/a && echo same > out/b\n"
        "    deps: [params.yaml]\n    outs: [out]\n".replace("export@cartpole", "export")
    )
    cache = root / ".dvc" / "cache" / "files" / "md5"
    states: dict[str, set[str]] = {}
    before: set[str] = set()
    for name in ("committed", "of a run", "unused", "work tree"):
        (root / "params.yaml").write_text(f"value: {name}\n")
        dvc("repro", "--quiet")
        now = {path.relative_to(cache).as_posix() for path in cache.glob("??/*")}
        states[name], before = now - before, now
        if name == "committed":
            git(root, "add", "--all")
            git(root, "commit", "--quiet", "--message", "state")
        if name == "of a run":
            keep_lock(root)
    assert [len(new) for new in states.values()] == [3, 2, 2, 2], "a folder, its new file, once the file that stays"
    done = gc("--json", "--yes")
    assert done.exception is None, done.exception
    removed = {Path(item["path"]).relative_to(cache).as_posix() for item in json.loads(done.stdout)["items"]}
    assert removed == states["unused"]
    (root / "out" / "a").unlink()
    dvc("checkout", "--quiet")
    assert (root / "out" / "a").read_text() == "value: work tree\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_cache_keeps_what_any_commit_refers_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tag, a merge that took the other side, a stash, before a move, under odd names, and uncommitted."""
    top, root = tmp_path / "repository", tmp_path / "repository" / "moved"
    (top / "first").mkdir(parents=True)
    git(top, "init", "--quiet", "--initial-branch", "main")

    def commit(folder: Path, name: str, digest: str) -> None:
        (folder / name).write_text(f"outs:\n- md5: {digest * 16}\n  path: x\n")
        git(top, "add", "--all", "--force", "--", str(folder / name))
        git(top, "commit", "--quiet", "--message", digest)

    commit(top / "first", "a.dvc", "a0")
    git(top, "mv", "first", "moved")
    monkeypatch.chdir(root)
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    dvc("init", "--quiet", "--subdir")
    commit(root, "a.dvc", "a1")
    commit(root, "odd\nname\u2028.dvc", "a2")
    git(top, "checkout", "--quiet", "-b", "side")
    commit(root, "a.dvc", "a3")
    git(top, "checkout", "--quiet", "main")
    commit(root, "a.dvc", "a4")
    git(top, "merge", "--quiet", "--strategy", "ours", "--message", "merge", "side")
    git(top, "branch", "--quiet", "-D", "side")
    git(top, "checkout", "--quiet", "--detach")
    commit(root, "a.dvc", "a5")
    git(top, "tag", "released")
    git(top, "checkout", "--quiet", "main")
    (root / "a.dvc").write_text(f"outs:\n- md5: {'a6' * 16}\n")
    git(top, "stash", "--quiet")
    (root / "b.dvc").write_text("<<<<<<< damaged: [")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message", "damaged")
    (root / "b.dvc").unlink()
    (root / ".data").mkdir()
    (root / ".data" / "x.dvc").write_text(f"outs:\n- md5: {'a7' * 16}.dir\n")
    (root / "gone.dvc").symlink_to("nowhere")
    (root / "dvc.yaml").write_text("stages: {}\n")
    cache = root / ".dvc" / "cache" / "files" / "md5"
    for digest in (f"a{number}" for number in range(10)):
        (cache / digest).mkdir(parents=True)
        (cache / digest / (digest * 15)).write_text(digest)
    assert {Path(one.path).name[:2] for one in cache_garbage()} == {"a8", "a9"}
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "a1")
    with pytest.raises(ServiceError):
        list(cache_garbage())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of DVC's whose cache holds entries of the digests a0a0... to a9a9...; a0 stands in its dvc.lock."""
    root = tmp_path / "project"
    cache = root / ".dvc" / "cache" / "files" / "md5"
    for digest in (f"a{number}" for number in range(10)):
        (cache / digest).mkdir(parents=True)
        (cache / digest / (digest * 15)).write_text(digest)
    (root / ".dvc" / "config").write_text("")
    (root / ".gitignore").write_text("cache/\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "dvc.lock").write_text(refer("a0"))
    monkeypatch.chdir(root)
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    return root


def refer(digest: str) -> str:
    return f"schema: '2.0'\nstages:\n  x:\n    cmd: x\n    outs:\n    - path: x\n      md5: {digest * 16}\n"


def kept() -> set[str]:
    unused = {Path(one.path).name[:2] for one in cache_garbage()}
    return {f"a{number}" for number in range(10)} - unused


def start_git(root: Path) -> None:
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("above", [False, True])
def test_commits_count_where_dvc_was_told_of_no_git(project: Path, above: bool) -> None:
    """`dvc init --no-scm`, in a folder that became a repository, or lies in one."""
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    assert kept() == {"a0"}
    start_git(project.parent if above else project)
    (project / "dvc.lock").write_text(refer("a1"))
    assert kept() == {"a0", "a1"}
    repository = (project.parent if above else project) / ".git"
    (repository / "HEAD").unlink()
    with pytest.raises(ServiceError, match="not a git repository"):
        kept()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_another_work_tree_refers_to_counts(project: Path) -> None:
    """Its `cache.dir` may be this one; what is damaged there is its own affair, as far as it can be read."""
    start_git(project)
    git(project, "worktree", "add", "--quiet", "--detach", "../linked")
    linked = project.parent / "linked"
    (linked / "dvc.lock").write_text(refer("a1") + "<<<<<<< ours\n" + refer("a2"))
    (linked / "moved" / "here").mkdir(parents=True)
    (linked / "moved" / "here" / "new.dvc").write_text(refer("a3"))
    assert kept() == {"a0", "a1", "a2", "a3"}


DAMAGED = {
    "conflict": "<<<<<<< ours\n",
    "no date": "desc: 2001-99-99\n",
    "no number": "desc: !!int x\n",
    "no time": "desc: !!timestamp x\n",
    "no truth": "desc: !!bool x\n",
    "no text": "\udcff\n",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_names_the_file_in_the_work_tree_and_hides_nothing_in_history(project: Path, damage: str) -> None:
    start_git(project)
    (project / "dvc.lock").write_text(refer("a1") + DAMAGED[damage] + refer("a2"), errors="surrogateescape")
    with pytest.raises(ArtifactError, match=r"(?s)project/dvc\.lock is damaged.*nothing was removed"):
        kept()
    git(project, "commit", "--quiet", "--all", "--message", "damaged")
    (project / "dvc.lock").write_text(refer("a0"))
    assert kept() == {"a0", "a1", "a2"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_digest_is_found_however_yaml_says_it(project: Path) -> None:
    """In what refers to itself, is nested deep, or stands for very much more; as a number; and by an alias."""
    start_git(project)
    number = "12" * 16
    entry = project / ".dvc" / "cache" / "files" / "md5" / "12" / number[2:]
    entry.parent.mkdir()
    entry.write_text("12")
    more = "".join(f"m{level}: &m{level} [{', '.join([f'*m{level - 1}'] * 9)}]\n" for level in range(1, 12))
    (project / "a.dvc").write_text(f"a: &a [*a]\nouts: [{{md5: {'a1' * 16}}}]\n")
    (project / "b.dvc").write_text(f"m0: &m0 x\n{more}outs: [{{md5: {'a2' * 16}.dir}}, {{md5: {number}}}]\n")
    (project / "c.dvc").write_text(f"h: &h '{'a3' * 16}'\nouts: [{{md5: *h}}]\n")
    (project / "d.dvc").write_text(f"d: {'[' * 5000}{']' * 5000}\nouts: [{{md5: {'a4' * 16}}}]\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "odd")
    (project / "d.dvc").unlink()  # without its C library, PyYAML does not read it
    assert kept() == {"a0", "a1", "a2", "a3", "a4"}
    assert str(entry) not in {item.path for item in cache_garbage()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_damaged_lock_of_a_run_is_named(project: Path) -> None:
    start_git(project)
    keep_lock(project, stage="x")
    lock = run_folder("run-1") / "dvc.lock"
    lock.write_text(refer("a4"))
    assert kept() == {"a0", "a4"}
    lock.write_text(refer("a4") + "<<<<<<< ours\n")
    with pytest.raises(ArtifactError, match=r"(?s)run-1/dvc\.lock is damaged.*nothing was removed"):
        kept()


def keep_lock(root: Path, stage: str = "export") -> None:
    import yaml

    entry = yaml.safe_load((root / "dvc.lock").read_text())["stages"][stage]
    write_run(
        RunRecord(
            run_id="run-1",
            policy="cartpole",
            state="promoted",
            started="2026",
            config={},
            stages=[StageRecord(name="export", status="ran", seconds=1, verdict="", lock=entry)],
        )
    )


def dvc(*arguments: str) -> None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, env=environment, capture_output=True)

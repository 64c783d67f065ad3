"""What may name something in a path, wherever it comes from: a command line, a config, MLflow, LoomDB."""

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.errors import ConfigError, LoomRLError
from loomrl.promotion import promote
from loomrl.promotion.comparison.compare import VersionComparison
from loomrl.runs.config import PolicyConfig
from loomrl.serving.controls.controls import Controls
from loomrl.serving.guardian.quarantine import Quarantine
from loomrl.serving.policy.last_verified import path_of
from loomrl.serving.settings import ServerSettings
from loomrl.storage import run_record as runs
from loomrl.storage.audit.hosts import chains_of_all_hosts
from loomrl.storage.audit.log import AuditLog, ChainHead, audit_folder
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.storage.registry import runs as registry_runs
from loomrl.system.home import config_file, inside
from loomrl.system.names import MAX_FILE_NAME, MAX_NAME, checked_name
from tests.support.champions import promotion
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.projects import git

ROOT = Path(__file__).resolve().parents[2]
GOOD = ("cartpole", "server-0", "host.example.org-workers", "20261120-093015-3f9a1c", "3", "A_b", "x" * MAX_NAME)
BAD = (
    "../x",
    "../../x",
    "/etc",
    "a/b",
    "",
    ".",
    "..",
    ".x",
    "-x",
    "x\n",
    "x\0",
    "a b",
    "ä",
    "a\\b",
    "~",
    "x" * (MAX_NAME + 1),
)
OUTSIDE = "../../outside/x"


@pytest.mark.parametrize("name", GOOD)
def test_a_name_stays_as_it_is(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name_is_refused(name: str, loomrl_home: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(name[:80]))):
        checked_name(name)
    with pytest.raises(ConfigError, match="is refused, for files are named after it"):
        inside("versions", name if len(name) <= MAX_NAME else "x" * (MAX_FILE_NAME + 1), "1")


def test_the_longest_name_can_be_registered_promoted_and_served(ready_home: Path, tmp_path: Path) -> None:
    """Files get endings, and names of temporary files before they get their own."""
    policy, registry = "x" * MAX_NAME, Registry()
    for number in (1, 2):
        folder = discrete_folder(tmp_path / f"{number}", value=float(number), name=policy)
        version = registry.register(policy, folder, f"run-{number}")
        decision = promotion(version.version, registry.aliases(policy).get(CHAMPION), policy)
        with promote.exclusive(policy):
            promote.apply(decision, f"run-{number}", registry)
    with Inside(ServerSettings(policy)) as server:
        assert server.decide("a", OBSERVATIONS[0].tolist()).json()["version"] == "2"
        order = {"version": "1", "agent_id": "a", "person": "Ada", "reason": "test"}
        assert server.ask("POST", "/override", order).status_code == 201
        server.context.roles.refresh()
    assert path_of(policy).is_file()
    assert Controls(policy).path.is_file()
    with promote.exclusive(policy):
        promote.rollback(policy, "it drifts", "Ada", registry=registry)
    assert registry.aliases(policy)[CHAMPION] == "1"
    assert longest_file_name(ready_home) <= 255 - 10, "a temporary file is named after it and ten characters"


def longest_file_name(folder: Path) -> int:
    return max(len(os.fsencode(path.name)) for path in folder.rglob("*"))


def test_every_config_has_a_name_that_is_one() -> None:
    pattern = PolicyConfig.model_json_schema()["properties"]["name"]["pattern"]
    for name in BAD:
        assert re.search(pattern, name) is None or name.endswith("\n") or len(name) > MAX_NAME
    for path in (ROOT / "configs").glob("*.yaml"):
        assert checked_name(path.stem) == path.stem


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a project, a home, and what lies outside both and holds what a name could lead to."""
    (tmp_path / "project" / "configs").mkdir(parents=True)
    (tmp_path / "project" / "dvc.yaml").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.yaml").write_text("name: x\n")
    home = tmp_path / "state" / "home"
    home.mkdir(parents=True)
    monkeypatch.setenv("LOOMRL_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def outside_the_home(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if not path.is_relative_to(folder / "state" / "home"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"" for path in found}


PLACES: dict[str, Callable[[str], object]] = {
    "controls": Controls,
    "audit log of a policy": AuditLog,
    "audit log of a server": lambda name: AuditLog("cartpole", name),
    "audit folder": audit_folder,
    "chains": chains_of_all_hosts,
    "roles": path_of,
    "quarantine": Quarantine,
    "server of a policy": ServerSettings,
    "server of a name": lambda name: ServerSettings("cartpole", server=name),
    "run": runs.read_run,
    "config": config_file,
    "comparison": lambda name: comparison(name).path,
}


def comparison(policy: str) -> VersionComparison:
    return VersionComparison.model_construct(policy=policy, champion_version="1", challenger_version="2")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["../../outside/x", "../x", "/tmp/x"])
def test_no_place_is_outside_its_folder(place: str, name: str, places: Path) -> None:
    before = outside_the_home(places)
    with pytest.raises(ConfigError, match="is refused, for files are named after it"):
        PLACES[place](name)
    assert outside_the_home(places) == before
    assert not any(path.is_file() for path in (places / "state" / "home").rglob("*"))


def test_what_mlflow_says_of_a_place_is_no_way_out(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment's place for artifacts is what whoever may write to MLflow says it is."""
    found = SimpleNamespace(info=SimpleNamespace(artifact_uri=f"mlflow-artifacts:/{OUTSIDE}"))

    class Client:
        def __enter__(self) -> Any:
            return SimpleNamespace(get_run=lambda _: found)

        def __exit__(self, *_: object) -> None:
            return

    monkeypatch.setattr(registry_runs, "mlflow_client", lambda _: Client())
    before = outside_the_home(places)
    with pytest.raises(ConfigError, match="is refused"):
        registry_runs.log_artifacts("run", places / "project", uri="sqlite:///any.db")
    assert outside_the_home(places) == before


def test_what_loomdb_says_of_a_chain_is_no_way_out(places: Path) -> None:
    from loomrl.storage.audit.heads import anchor
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as database, pytest.raises(ConfigError, match="is refused"):
        anchor(database, ChainHead("cartpole/../../..", "000000", 0, "0" * 64))


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line, with the words that call it."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "commands"):
            yield words, command
            return
        for word, one in command.commands.items():
            yield from below(one, (*words, word))

    return below(typer.main.get_command(app), ())


# What a command line names that files are named after.
NAMED = {"policy", "server", "run", "reference"}
OF_FOLDERS = {("engine", "serve"), ("engine", "tokenizer"), ("model", "build"), ("model", "check"), ("model", "shield")}


def attempts() -> list[tuple[str, ...]]:
    """Each command that takes a name, once for each of them; whatever else it needs is given as well."""
    found = []
    for words, command in commands():
        for named in (one for one in command.params if one.name in NAMED and words not in OF_FOLDERS):
            line = list(words)
            for one in command.params:
                if one is named or one.required:
                    value = OUTSIDE if one is named else "1"
                    line += [value] if one.param_type_name == "argument" else [one.opts[0], value]
            found.append(tuple(line))
    return found


@pytest.mark.parametrize("line", attempts(), ids=" ".join)
def test_no_command_leaves_the_home(line: tuple[str, ...], places: Path, template_home: Path) -> None:
    for name in ("mlflow.db", "loom.db"):
        shutil.copy2(template_home / name, places / "state" / "home" / name)
    before = outside_the_home(places)
    done = CliRunner().invoke(app, list(line))
    assert done.exception is None or isinstance(done.exception, LoomRLError | SystemExit), done.exception
    assert outside_the_home(places) == before
    assert not [one for one in (places / "state" / "home").rglob("*") if one.name == "x" or one.name.startswith("x.")]


def test_a_path_below_the_home_is_made_of_checked_names() -> None:
    """`home() / NAME` is written where NAME is a literal, or a digest that was just computed; else `inside`."""
    allowed = {"job.inputs_digest"}
    found = []
    for path in (path for room in ("src/loomrl", "tasks", "flows") for path in sorted((ROOT / room).rglob("*.py"))):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"home\(\)\)? /", text) else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                first, *names = ast.unparse(node).split(" / ")
                is_open = any(not name.startswith("'") and name not in allowed for name in names)
                if re.fullmatch(r"\w*home\(\)|\(home or default_home\(\)\)", first) and is_open:
                    found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    locked = "src/loomrl/serving/policy/sources.py: home() / 'versions' / f'.{self.policy}-{found.version}.lock'"
    assert found == [
        locked,
        "src/loomrl/storage/upkeep/backup.py: home() / name",
    ]  # checked a line above; of a list of literals


def test_a_flow_starts_with_a_name(places: Path) -> None:
    """Whoever may start a flow names a policy, and the flow reads a config by that name."""
    from tasks.run import life_cycle

    git(places / "project", "init", "--quiet")
    with pytest.raises(ConfigError, match="policy '../../outside/x' is refused"), life_cycle(OUTSIDE, {}):
        pytest.fail("it began")
    assert os.listdir(places / "outside") == ["x.yaml"]

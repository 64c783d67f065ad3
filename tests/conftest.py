"""Fixtures every room may use, which worker runs what, and on how many threads."""

import gc
import os
import shutil
import ssl
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from benchmarks.resumable import Store
from loomrl.runs.stages.__main__ import ONE_THREAD
from loomrl.system.processors import num_processors
from tests.support.planted import PLANTED, PLANTED_FILE, SECRET_VARIABLES
from tests.support.preforked import Preforked
from tests.support.projects import SHARED, copy_project, copy_state, prefect_server, run
from tests.support.template_home import made_once, prefect_database, ready_home, template_home

__all__ = ["prefect_database", "ready_home", "template_home"]
ROOT = Path(__file__).resolve().parents[1]


# As in a stage's process: torch's threads wait by spinning, which is dear where tests run side by side.
os.environ.update(ONE_THREAD)
# Else every process that tests start would compile all that it imports: great_expectations alone takes 5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Ray runs its workers at a low priority: beside other tests they would get no turn, and learners would seem to hang.
os.environ.update({"RAY_worker_niceness": "0"})
# Else each HTTP client reads a file with all roots of trust, for 0.05 s; in a folder they are looked up when needed.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = ssl.get_default_verify_paths().openssl_capath

# The gate asks the same today and tomorrow.
# A busy machine is no fault: nothing here is judged by how long it takes.
hypothesis.settings.register_profile(
    "gate", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("gate")

# Their tests cost most, stand alone, and most of them copy the finished project.
SPREAD = ("flows", "docs", "faults", "examples")
ONE_SCOPE = (
    "flows/test_servers.py",
    "test_thermostat_plugin.py",
    "faults/test_orders.py",
)  # with a fixture of their own
# Rooms of which each takes a worker minutes, or in which what others need is compiled.
HEAVY = (
    "algorithms",
    "algorithms/compiled",
    "algorithms/sac",
    "serving",
    "safety",
    "training",
    "promotion",
    "deploy",
    "training/distributed",
    "language/trajectory",
)
SLOW = ("test_lifecycle.py", "README.md", "operations.md")  # a minute or so each
MAKES_THE_PROJECT = "test_a_first_run_goes_through_all_seven_stages_and_promotes"


# What the outcome of a test may depend on.
SOURCES = ("src", "flows", "tasks", "tests")


class KeptOutcomes:
    """Keeps the outcome of each test as data, with the digest of the code it is of."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path, ROOT)
        self.outcomes: dict[str, str] = {}
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.seconds[name] += report.duration
        if report.when == "call" or not report.passed:
            self.outcomes[name] = report.outcome
        if report.when == "teardown":
            self.store.put(name, SOURCES, {"outcome": self.outcomes[name], "seconds": round(self.seconds[name])})


class FailuresAtOnce:
    """Says which test failed, and with what error, when it does: a run that is cut off has no summary."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._plugins.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            error = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or str(report.longrepr)
            first_line = error.strip().partition("\n")[0]
            reporter.write_line(f"\n{report.nodeid} failed in {report.when}: {first_line}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-outcomes", type=Path, metavar="FILE", help="keep each test's outcome in this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(FailuresAtOnce(config.pluginmanager))
    if (path := config.getoption("--keep-outcomes")) is not None:
        config.pluginmanager.register(KeptOutcomes(path))


def room_of(nodeid: str) -> str:
    """The folder of a test, two below `tests/` at the most; its file where it lies in none."""
    path = nodeid.partition("::")[0].split("/")
    return "/".join(path[1:-1][:2]) or path[-1]


def mark_long_cases(items: list[pytest.Item]) -> None:
    """Mark the cases that `long_cases` names by their ids."""
    for item in items:
        if any(item.nodeid.endswith(f"[{case}]") for mark in item.iter_markers("long_cases") for case in mark.args):
            item.add_marker("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that are long, and order all.

    Who makes the finished project begins, beside the files that are one scope, then come the rooms that take long, then
    what takes long and waits for that project, then the other rooms, then the rest: at the end there is something short
    for whoever is ready.
    """
    mark_long_cases(items)

    def turn(item: pytest.Item) -> int:
        if item.name == MAKES_THE_PROJECT:
            return 0
        if (room := room_of(item.nodeid)) not in SPREAD:
            return 2 if room in HEAVY else 4
        if str(item.path).endswith(ONE_SCOPE):
            return 1
        return 3 if any(name in item.nodeid for name in SLOW) else 5

    items.sort(key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """After a file's tests what is there stays: the garbage collector took a tenth of the time to look at all that was
    ever imported, again and again."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


class Rooms(LoadScopeScheduling):
    """A room's tests run on one worker: what its fixtures train and what it compiles is made once.

    Of the rooms that are spread, ONE_SCOPE's files are one scope each, and so is each test of the others.
    """

    def _split_scope(self, nodeid: str) -> str:
        if room_of(nodeid) not in SPREAD:
            return room_of(nodeid)
        path = nodeid.partition("::")[0]
        return path if path.endswith(ONE_SCOPE) else nodeid

    def remove_node(self, node: Any) -> str | None:
        """Give the test at which the worker ended: it has failed. What else that worker had to run another one does."""
        work = self.assigned_work[node]
        left = (nodeid for tests in work.values() for nodeid, is_completed in tests.items() if not is_completed)
        crashed = next(left, None)
        for scope, tests in list(work.items()):
            if crashed in tests:
                tests[crashed] = True
            if all(tests.values()):
                del work[scope]  # xdist would hand it out again, and whoever got it would have nothing to do, for ever
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker its next scope when it has begun the last test of what it has: the others may be idle."""
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: tests of servers and life cycles wait for a third of their time.

    With two more, challengers in shadow, which get only what others leave, got next to nothing.
    """
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else num_processors() + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Rooms:
    return Rooms(config, log)


@pytest.fixture(scope="session", autouse=True)
def preforked() -> Iterator[None]:
    """Servers of tests, and what those start, are copies of one process that has imported what they need."""
    with Preforked():
        yield


@pytest.fixture
def loomrl_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty LOOMRL_HOME of the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("LOOMRL_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)
    return home


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project in which CartPole went through its life cycle once. Never change it: copy it.

    What the run printed is in `log` beside it. It knew secrets: in variables, and in a file that git does not track.
    """
    return made_once(tmp_path_factory, "finished", finish_project) / "project"


def finish_project(folder: Path) -> None:
    project = copy_project(folder / "project")
    (project / PLANTED_FILE).write_text(f"password = '{PLANTED}'\n")
    secrets = dict.fromkeys(SECRET_VARIABLES, PLANTED)
    (folder / "log").write_text(run(project, "loomrl", "run", "configs/cartpole.yaml", **secrets))
    (project / PLANTED_FILE).unlink()


@pytest.fixture(scope="session")
def project_with_challenger(tmp_path_factory: pytest.TempPathFactory, finished_project: Path) -> Path:
    """The same, and its DVC cache knows the stages of a challenger: a run with `training.seed=2` restores them."""

    def make(folder: Path) -> None:
        prepare_challenger(copy_state(finished_project, folder / "project"))

    return made_once(tmp_path_factory, "challenger", make) / "project"


def prepare_challenger(project: Path) -> None:
    config, lock = project / "configs" / "cartpole.yaml", project / "dvc.lock"
    before = {path: path.read_text() for path in (config, lock)}
    config.write_text(before[config].replace("seed: 1", "seed: 2"))
    run(project, "dvc", "repro", "export@cartpole")
    for path, text in before.items():
        path.write_text(text)
    run(project, "dvc", "checkout", "--force", "--with-deps", "export@cartpole")


@pytest.fixture(scope="session")
def running_prefect(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[str]:
    """A Prefect server; a run on it starts ten seconds sooner than one that starts its own."""
    home = tmp_path_factory.mktemp("prefect")
    shutil.copy2(prefect_database, home / "prefect.db")
    with prefect_server(home) as url:
        yield url


@pytest.fixture
def shared_prefect(running_prefect: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run this test's commands on the shared Prefect server; its API's URL."""
    monkeypatch.setitem(SHARED, "PREFECT_API_URL", running_prefect)
    return running_prefect

"""A copy of the process that has imported what servers need is all that a test asks of a new process."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from loomrl.language.trajectory.process import HubProcess
from loomrl.serving.process import ServerProcess
from loomrl.system.http.process import ServiceProcess
from tests.support.preforked import Copy, Preforked, real_launch

SAYS_WHO_IT_IS = "import os; print(os.getppid(), os.getcwd(), os.environ['WHO'], len(os.listdir('/proc/self/fd')))"


class Service(ServiceProcess):
    """One that is never entered."""

    arguments = ()
    name = "service"


@pytest.fixture
def copies() -> Iterator[Preforked]:
    with Preforked({"json.tool": ("json",), "timeit": ("timeit",)}) as found:
        yield found


def launch(copies: Preforked, log: Path, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        return copies.launch(Service(environment=environment), list(arguments), file)


def once(statement: str) -> tuple[str, ...]:
    return "timeit", "-n1", "-r1", "-s", statement, "pass"


def test_it_is_a_child_with_its_own_environment_folder_and_log(
    copies: Preforked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for who in ("first", "second"):
        copy = launch(copies, tmp_path / who, *once(SAYS_WHO_IT_IS), WHO=who)
        assert isinstance(copy, Copy)
        assert copy.wait(60) == 0
        said = (tmp_path / who).read_text().splitlines()[0]
        assert said == f"{os.getpid()} {tmp_path} {who} 4"  # the three of every process, and the folder being listed


def test_its_exit_code_and_signals_are_its_own(copies: Preforked, tmp_path: Path) -> None:
    failed = launch(copies, tmp_path / "log", "json.tool", "missing.json")
    assert failed.wait(60) == 2
    assert "missing.json" in (tmp_path / "log").read_text()
    asleep = launch(copies, tmp_path / "log", *once("import time; time.sleep(600)"))
    assert asleep.poll() is None
    asleep.terminate()
    assert asleep.wait(60) == -signal.SIGTERM


def test_many_at_once_are_told_apart(copies: Preforked, tmp_path: Path) -> None:
    def ask(number: int) -> str:
        log = tmp_path / str(number)
        assert launch(copies, log, *once("import os; print(os.environ['WHO'])"), WHO=str(number)).wait(60) == 0
        return log.read_text().splitlines()[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(12))) == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    "service", [ServerProcess("cartpole", wait_ready=False), HubProcess()], ids=lambda one: one.name
)
def test_services_start_in_a_new_python_too(
    service: ServiceProcess, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceProcess, "_launch", real_launch)
    monkeypatch.setitem(service._environment, "LOOMRL_HOME", str(loomrl_home))
    with service:
        assert httpx.get(f"{service.url}/openapi.json", trust_env=False).status_code in (200, 401)


def test_another_service_takes_a_new_python(copies: Preforked, tmp_path: Path) -> None:
    new = launch(copies, tmp_path / "log", "calendar", "2026")
    assert not isinstance(new, Copy)
    assert new.wait(60) == 0


def test_what_is_read_when_python_starts_takes_a_new_python(copies: Preforked, tmp_path: Path) -> None:
    new = launch(copies, tmp_path / "log", *once("import sys; print(sys.flags.hash_randomization)"), PYTHONHASHSEED="0")
    assert not isinstance(new, Copy)
    assert new.wait(60) == 0
    assert (tmp_path / "log").read_text().startswith("0")


def test_where_the_imports_fail_a_new_python_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Preforked({"nowhere": ("nowhere",)}) as copies:
        for _ in range(2):
            new = launch(copies, tmp_path / "log", "nowhere")
            assert not isinstance(new, Copy)
            assert new.wait(60) == 1
    assert "No module named nowhere" in (tmp_path / "log").read_text()
    assert "No module named 'nowhere'" in capfd.readouterr().err


def test_a_process_that_is_no_child_is_an_error() -> None:
    with pytest.raises(ChildProcessError):
        Copy(os.getppid(), [])


def test_the_process_that_is_copied_may_be_lost(copies: Preforked, tmp_path: Path) -> None:
    assert launch(copies, tmp_path / "log", *once("pass")).wait(60) == 0
    assert copies._process is not None
    copies._process.kill()
    copies._process.wait()
    assert launch(copies, tmp_path / "log", *once("pass")).wait(60) == 0

"""A copy of the process that has imported what servers need is all that a test asks of a new process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from loomrl.language.trajectory.process import HubProcess
from loomrl.serving.process import ServerProcess
from loomrl.system.http.process import ServiceProcess
from tests.support.preforked import MODULES, ForkedPopen, ForkServer, Preforked
from tests.support.projects import until
from tests.support.startup_code import environment_with

SAYS_WHO_IT_IS = "import os; print(os.getppid(), os.getcwd(), os.environ['WHO'], len(os.listdir('/proc/self/fd')))"


@pytest.fixture
def copies() -> Iterator[Preforked]:
    with Preforked({"json.tool": ("json",), "timeit": ("timeit",)}) as found:
        yield found


def launch(log: Path, *arguments: str, **environment: str) -> ForkedPopen:
    with log.open("ab") as file:
        command = [sys.executable, "-m", *arguments]
        started = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=file)
    assert isinstance(started, ForkedPopen)
    return started


def once(statement: str) -> tuple[str, ...]:
    return "timeit", "-n1", "-r1", "-s", statement, "pass"


@pytest.fixture
def many_files() -> Iterator[None]:
    """What is opened within the test gets file descriptors from 900 on."""
    filled = [os.open(os.devnull, os.O_RDONLY)]
    while filled[-1] < 900:
        filled.append(os.dup(filled[0]))
    yield
    for one in filled:
        os.close(one)


@pytest.mark.usefixtures("copies")
def test_it_is_a_child_with_its_own_environment_folder_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for who in ("first", "second"):
        copy = launch(tmp_path / who, *once(SAYS_WHO_IT_IS), WHO=who)
        assert copy.is_copy
        assert copy.wait(60) == 0
        said = (tmp_path / who).read_text().splitlines()[0]
        assert said == f"{os.getpid()} {tmp_path} {who} 4"  # the three of every process, and the folder being listed


@pytest.mark.usefixtures("copies")
def test_its_exit_code_and_signals_are_its_own(tmp_path: Path) -> None:
    failed = launch(tmp_path / "log", "json.tool", "missing.json")
    assert failed.wait(60) == 2
    assert "missing.json" in (tmp_path / "log").read_text()
    asleep = launch(tmp_path / "log", *once("import time; time.sleep(600)"))
    assert asleep.poll() is None
    asleep.terminate()
    assert asleep.wait(60) == -signal.SIGTERM


@pytest.mark.usefixtures("copies")
def test_it_ends_when_its_threads_have_and_does_last_what_was_to_be_done_at_the_end(tmp_path: Path) -> None:
    late = "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
    copy = launch(tmp_path / "log", *once(f"import atexit, threading, time; atexit.register(print, 'last'); {late}"))
    assert copy.is_copy
    assert copy.wait(60) == 0
    assert (tmp_path / "log").read_text().split()[-2:] == ["thread", "last"]


@pytest.mark.usefixtures("many_files", "copies")
def test_nor_do_many_open_files_change_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_it_is_a_child_with_its_own_environment_folder_and_log(tmp_path, monkeypatch)


@pytest.mark.usefixtures("many_files", "copies")
def test_its_pipes_and_handles_are_those_that_were_given(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "json.tool", "--compact"]
    for text in ("[1, 2]", "[3]"):
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout.split() == [text.replace(" ", "")]
    reads, writes = os.pipe()
    statement = f"import os; os.write({writes}, b'handed over'); os.write(2, str(os.getsid(0) == os.getpid()).encode())"
    command = [sys.executable, "-m", *once(statement)]
    started = subprocess.Popen(command, pass_fds=[writes], stderr=subprocess.PIPE, start_new_session=True)
    os.close(writes)
    assert isinstance(started, ForkedPopen)
    assert started.is_copy
    _, errors = started.communicate()
    with os.fdopen(reads, "rb") as pipe:
        assert (pipe.read(), errors) == (b"handed over", b"True")


def test_an_interrupted_request_is_no_ones_and_the_next_one_is_answered(copies: Preforked, tmp_path: Path) -> None:
    assert launch(tmp_path / "log", *once("pass")).wait(60) == 0
    assert copies.process is not None
    first = copies.process
    first.send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGALRM))
    handler = signal.signal(signal.SIGALRM, interrupted)
    try:
        timer.start()
        with pytest.raises(Interrupted):
            launch(tmp_path / "log", *once("pass"))
    finally:
        signal.signal(signal.SIGALRM, handler)
        first.kill()
        first.wait()
    again = launch(tmp_path / "log", *once("pass"))
    assert again.is_copy
    assert again.wait(60) == 0


class Interrupted(Exception):
    """Whoever waits is interrupted."""


def interrupted(_number: int, _frame: object) -> None:
    raise Interrupted


@pytest.mark.usefixtures("copies")
def test_what_a_copy_cannot_do_is_done_by_a_new_python(tmp_path: Path) -> None:
    command = [sys.executable, "-m", *once("pass")]
    large = {**os.environ, **{f"LARGE_{number}": 50_000 * "x" for number in range(3)}}
    for options in ({"close_fds": False}, {"env": large}, {"umask": 0o77}):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) as started:  # type: ignore[call-overload]
            assert not started.is_copy
        assert started.returncode == 0
    with subprocess.Popen([*command[:2], Path("timeit"), *command[3:]], stdout=subprocess.DEVNULL) as started:
        assert not started.is_copy  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError):
        subprocess.Popen(command, cwd=tmp_path / "missing")
    subprocess.run([sys.executable, "-m"], check=False, stderr=subprocess.DEVNULL)
    before = os.umask(0o27)
    try:
        assert launch(tmp_path / "log", *once("import os; print(os.umask(0))")).wait() == 0
    finally:
        os.umask(before)
    assert (tmp_path / "log").read_text().startswith(f"{0o27}\n")


def test_what_is_copied_is_there() -> None:
    assert all(find_spec(name) for name in [*MODULES, *(one for imported in MODULES.values() for one in imported)])


def test_a_server_holds_open_nothing_that_its_own_copies_were_not_given(loomrl_home: Path) -> None:
    """Nor is it outside the server's session."""
    reads, writes = os.pipe()
    command = [sys.executable, "-m", "loomrl.serving", "--policy", "cartpole", "--port", "0", "--server", "pipe"]
    environment = {**os.environ, "LOOMRL_HOME": str(loomrl_home)}
    server = subprocess.Popen(
        command, pass_fds=[writes], env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        assert isinstance(server, ForkedPopen)
        assert server.is_copy
        folder = Path(f"/proc/{server.pid}/task")
        until(lambda: len(children(folder)) == 2, "the guardian and the process that is copied")
        assert {os.getsid(int(pid)) for pid in children(folder)} == {server.pid}
        held = [os.readlink(one) for pid in children(folder) for one in Path(f"/proc/{pid}/fd").iterdir()]
        assert os.readlink(f"/proc/self/fd/{reads}") not in held
    finally:
        server.terminate()
        server.wait()
        os.close(reads)
        os.close(writes)


def test_what_a_server_starts_is_a_copy_and_ends_with_it(loomrl_home: Path) -> None:
    with ServerProcess("cartpole", wait_ready=False) as server:
        assert server.process is not None
        assert server.process.is_copy
        folder = Path(f"/proc/{server.process.pid}/task")
        until(lambda: len(children(folder)) == 2, "the guardian beside the process that is copied")
        begun = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(folder)]
        assert all(b"tests.support.preforked" in command for command in begun), begun
        pids = children(folder)
        server.kill()
    until(lambda: not any(lives(pid) for pid in pids), "the end of what the server started")


def children(tasks: Path) -> list[str]:
    """The process ids of what a process's threads have started."""
    return [pid for listed in tasks.glob("*/children") for pid in listed.read_text().split()]


def lives(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.usefixtures("copies")
def test_code_to_run_at_the_start_is_run_by_a_copy_too(tmp_path: Path) -> None:
    environment = environment_with("import os; os.getppid = lambda: 'replaced'", tmp_path / "code")
    copy = launch(tmp_path / "log", *once(SAYS_WHO_IT_IS), WHO="a copy", **environment)
    assert copy.is_copy
    assert copy.wait(60) == 0
    assert (tmp_path / "log").read_text().startswith("replaced")
    other = {"PYTHONPATH": str(tmp_path)}  # where another folder is searched first, modules may be others
    new = launch(tmp_path / "log", *once("pass"), **environment | other)
    assert not new.is_copy
    assert new.wait(60) == 0


@pytest.mark.usefixtures("copies")
def test_many_at_once_are_told_apart(tmp_path: Path) -> None:
    def ask(number: int) -> str:
        log = tmp_path / str(number)
        assert launch(log, *once("import os; print(os.environ['WHO'])"), WHO=str(number)).wait(60) == 0
        return log.read_text().splitlines()[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(12))) == [str(number) for number in range(12)]


@pytest.mark.long
@pytest.mark.parametrize(
    "service", [ServerProcess("cartpole", wait_ready=False), HubProcess()], ids=lambda one: one.name
)
def test_services_start_in_a_new_python_too(
    service: ServiceProcess, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkedPopen, "server", None)
    monkeypatch.setitem(service._environment, "LOOMRL_HOME", str(loomrl_home))
    with service:
        assert httpx.get(f"{service.url}/openapi.json", trust_env=False).status_code in (200, 401)


@pytest.mark.usefixtures("copies")
def test_another_service_takes_a_new_python(tmp_path: Path) -> None:
    new = launch(tmp_path / "log", "calendar", "2026")
    assert not new.is_copy
    assert new.wait(60) == 0


@pytest.mark.usefixtures("copies")
def test_what_is_read_when_python_starts_takes_a_new_python(tmp_path: Path) -> None:
    new = launch(tmp_path / "log", *once("import sys; print(sys.flags.hash_randomization)"), PYTHONHASHSEED="0")
    assert not new.is_copy
    assert new.wait(60) == 0
    assert (tmp_path / "log").read_text().startswith("0")


@pytest.mark.usefixtures("copies")
def test_what_is_read_later_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "pdb.set_trace")  # as `ray.init` does
    copy = launch(tmp_path / "log", *once("import os; print(os.environ['PYTHONBREAKPOINT'])"))
    assert copy.is_copy
    assert copy.wait(60) == 0
    assert (tmp_path / "log").read_text().startswith("pdb.set_trace")


def test_where_the_imports_fail_a_new_python_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Preforked({"nowhere": ("nowhere",)}):
        for _ in range(2):
            new = launch(tmp_path / "log", "nowhere")
            assert not new.is_copy
            assert new.wait(60) == 1
    assert "No module named nowhere" in (tmp_path / "log").read_text()
    assert "No module named 'nowhere'" in capfd.readouterr().err


def test_a_process_that_is_no_child_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Preforked({"timeit": ("timeit",)}):
        monkeypatch.setattr(ForkServer, "fork", lambda *_: os.getppid())
        with pytest.raises(ChildProcessError):
            subprocess.Popen([sys.executable, "-m", *once("pass")])


def test_the_process_that_is_copied_may_be_lost(copies: Preforked, tmp_path: Path) -> None:
    assert launch(tmp_path / "log", *once("pass")).wait(60) == 0
    assert copies.process is not None
    copies.process.kill()
    copies.process.wait()
    assert launch(tmp_path / "log", *once("pass")).wait(60) == 0

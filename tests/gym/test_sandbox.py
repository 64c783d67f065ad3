"""What a program in the sandbox cannot do. Needs Debian's bubblewrap; where there is none these tests fail."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loomrl.gym.domains.code import sandbox
from loomrl.gym.domains.code.sandbox import Limits, run

SHORT = Limits(cpu_seconds=1)


def said(program: str, limits: Limits = SHORT) -> str:
    return run(program, b"", limits).output.decode()


def test_a_program_runs() -> None:
    outcome = run("import sys; print(sys.stdin.read() + 'b')", b"a")
    assert outcome.output == b"ab\n"
    assert outcome.finished


def test_it_reads_nothing_but_the_system() -> None:
    program = """
import os
for place in ("/etc/passwd", "/root", "/home", "/tmp", "/proc/1/environ", "/sys", "/var", %r):
    print(os.path.exists(place))
print(sorted(os.environ), os.listdir("/dev"))
"""
    lines = said(program % str(Path(__file__))).splitlines()
    assert lines[:-1] == ["False"] * 8
    assert "HOME" not in lines[-1]
    assert set(eval(lines[-1].partition("] ")[2])) == {"null", "urandom"}


def test_it_writes_nowhere() -> None:
    program = """
for place in ("/", "/tmp", "/dev", "/dev/shm", "/usr", "/usr/lib", "/etc", "/var/tmp"):
    try:
        open(place + "/filled", "w").write("x")
        print("wrote", place)
    except OSError:
        pass
"""
    assert said(program) == ""


def test_it_has_no_network() -> None:
    program = """
import socket
for address in (("127.0.0.1", %d), ("8.8.8.8", 53), ("1.1.1.1", 80)):
    one = socket.socket()
    one.settimeout(2)
    try:
        one.connect(address)
        print("connected")
    except OSError:
        pass
try:
    socket.getaddrinfo("example.org", 80)
    print("resolved")
except OSError:
    pass
"""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert said(program % listening.getsockname()[1]) == ""


def test_an_endless_loop_ends() -> None:
    assert not run("while True: pass", b"", SHORT).finished


def test_sleeping_ends() -> None:
    assert not run("import time; time.sleep(10_000)", b"", Limits(wall_seconds=1.0)).finished


def test_memory_ends() -> None:
    assert not run("block = bytearray(10**9)", b"", SHORT).finished
    assert not run("blocks = []\nwhile True: blocks.append(bytearray(10**6))", b"", Limits()).finished


def test_output_ends() -> None:
    outcome = run("import os\nwhile True: os.write(1, b'x' * 65536)", b"", Limits(output_bytes=100_000))
    assert not outcome.finished
    assert len(outcome.output) == 100_000


FORK_BOMB = """
import os, time
started = 0
for _ in range(1_000):
    try:
        if os.fork() == 0:
            while True:
                try:
                    os.fork()
                except OSError:
                    time.sleep(0.01)
        started += 1
    except OSError:
        break
print(started, flush=True)
"""


def test_a_fork_bomb_has_few_processes_and_leaves_none() -> None:
    marked = FORK_BOMB + f"# {os.getpid()} {time.time_ns()}"
    outcome = run(marked, b"")
    assert int(outcome.output.split()[0]) < Limits().processes
    for _ in range(600):
        if not running(marked.rpartition("# ")[2]):
            return
        time.sleep(0.05)
    pytest.fail("processes of the sandbox are still there")


def running(mark: str) -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in process.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_it_kills_nobody() -> None:
    program = """
import os, signal
for process in (1, os.getppid(), %d):
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        pass
print("alive")
"""
    assert said(program % os.getpid()) == "alive\n"


def test_it_gains_no_rights() -> None:
    program = """
import ctypes, os, resource
for attempt in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chroot("/usr"),
                lambda: resource.setrlimit(resource.RLIMIT_NPROC, (10_000, 10_000))):
    try:
        attempt()
        print("could")
    except (OSError, ValueError):
        pass
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid(), libc.unshare(0x10000000), libc.mount(b"none", b"/usr", b"tmpfs", 0, None))
"""
    assert said(program) == "65534 -1 -1\n"


def test_it_works_for_who_is_not_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("every other test here is by somebody who is not root")
    script = "import os; print(os.getuid())"
    command = sandbox._command(script, Limits())
    plain = command[command.index(sandbox._path("bwrap")) :]
    identity = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]
    done = subprocess.run([*identity, *plain], cwd="/", env={}, capture_output=True, text=True, check=True)
    assert done.stdout == "65534\n"


def test_without_a_sandbox_nothing_runs(tmp_path: Path) -> None:
    program = """
from loomrl.gym.domains.code.sandbox import run
from loomrl.errors import ServiceError
try:
    run("open(%r, 'w')", b"")
except ServiceError as error:
    print(error)
""" % str(tmp_path / "ran")  # noqa: UP031
    settings = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True)
    assert "there is no `bwrap` on this machine; install Debian's `bubblewrap`" in done.stdout
    assert not (tmp_path / "ran").exists()

"""What a program in the sandbox cannot do. Needs Debian's bubblewrap; where there is none these tests fail."""

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loomrl.errors import ServiceError
from loomrl.gym.domains.code import cgroup, sandbox
from loomrl.gym.domains.code.sandbox import SandboxLimits, run
from loomrl.gym.domains.code.system_calls import seccomp_filter

SHORT = SandboxLimits(cpu_seconds=1)


def said(program: str, limits: SandboxLimits = SHORT) -> str:
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
    try:
        one = socket.socket()
        one.settimeout(2)
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
    assert not run("import time; time.sleep(10_000)", b"", SandboxLimits(wall_seconds=1.0)).finished


def test_memory_ends() -> None:
    assert not run("block = bytearray(10**9)", b"", SHORT).finished
    assert not run("blocks = []\nwhile True: blocks.append(bytearray(10**6))", b"", SandboxLimits()).finished


def test_output_ends() -> None:
    outcome = run("import os\nwhile True: os.write(1, b'x' * 65536)", b"", SandboxLimits(output_bytes=100_000))
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
    assert int(outcome.output.split()[0]) < SandboxLimits().processes
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
    with tempfile.TemporaryFile() as allowed:
        allowed.write(seccomp_filter())
        allowed.seek(0)
        command = sandbox._command(script, SandboxLimits(), allowed.fileno())
        plain = command[command.index(sandbox._path("bwrap")) :]
        identity = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]
        command = [*identity, *plain]
        assert subprocess.check_output(command, cwd="/", env={}, pass_fds=[allowed.fileno()]) == b"65534\n"


# Without a filter each of these can be called: it gives memory that no limit counts, a way around the limits, or a part
# of the kernel whose mistakes have let programs out of sandboxes. Numbers on x86_64 and aarch64, and arguments.
REACHED = {
    "io_uring_setup": (425, 425, "4, zeros"),
    "bpf": (321, 280, "0, struct.pack('IIII', 2, 4, 4, 1).ljust(72, bytes(1)), 72"),
    "perf_event_open": (
        298,
        241,
        "struct.pack('IIQQQQQ', 1, 128, 0, 0, 0, 0, 0x60).ljust(128, bytes(1)), 0, -1, -1, 0",
    ),
    "keyctl": (250, 219, "0, -3, 1"),
    "add_key": (248, 217, "b'user', b'name', b'value', 5, -3"),
    "request_key": (249, 218, "b'user', b'name', None, -3"),
    "shmget": (29, 194, "0, 1 << 28, 0o1600"),
    "msgget": (68, 186, "0, 0o1600"),
    "semget": (64, 190, "0, 1, 0o1600"),
    "mq_open": (240, 180, "b'queue', 0o102, 0o600, None"),
    "memfd_create": (319, 279, "b'memory', 0"),
    "userfaultfd": (323, 282, "1"),
    "io_setup": (206, 0, "4, zeros"),
    "ptrace": (101, 117, "0, 0, 0, 0"),
    "personality": (135, 92, "0xFFFFFFFF"),
    "unshare": (272, 97, "0"),
    "inotify_init1": (294, 26, "0"),
    "timerfd_create": (283, 85, "1, 0"),
    "socket": (41, 198, "1, 1, 0"),
}


@pytest.mark.parametrize("name", REACHED)
def test_of_the_kernel_it_reaches_what_it_needs(name: str) -> None:
    *numbers, arguments = REACHED[name]
    program = f"""
import ctypes, errno, platform, struct
zeros = bytes(4096)
libc = ctypes.CDLL(None, use_errno=True)
number = {numbers}[platform.machine() == "aarch64"]
print(libc.syscall(number, {arguments}), errno.errorcode.get(ctypes.get_errno()))
"""
    assert said(program) == "-1 ENOSYS\n"


def test_shared_memory_does_not_evade_the_limit() -> None:
    program = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
taken = 0
for _ in range(20):
    one = libc.shmget(0, 64 << 20, 0o1600)
    place = libc.shmat(one, None, 0) if one >= 0 else None
    if place in (None, 2**64 - 1):
        break
    ctypes.memset(place, 1, 64 << 20)
    libc.shmdt(ctypes.c_void_p(place))
    taken += 64
print(taken)
"""
    assert said(program, SandboxLimits(cpu_seconds=10)) == "0\n"


def test_it_ends_that_speaks_to_the_kernel_with_other_numbers() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of x32 are those of x86_64 with one bit set")
    program = "import ctypes; print(ctypes.CDLL(None).syscall(%d), flush=True)"
    assert int(said(program % 39)) > 0  # getpid
    outcome = run(program % (39 | 1 << 30), b"")
    assert outcome == (b"", False)


def test_what_programs_do_still_works() -> None:
    program = """
import asyncio, os, subprocess, sys, threading, time, random, datetime, functools, tracemalloc, signal, select

async def later():
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(lambda: "asyncio")

print(asyncio.run(later()))
found = []
one = threading.Thread(target=found.append, args=("thread",))
one.start(), one.join()
print(*found)
print(subprocess.run([sys.executable, "-c", "print('process')"], capture_output=True, text=True).stdout.strip())
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b"fork")
    os._exit(0)
os.waitpid(child, 0)
print(os.read(reading, 10).decode())
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.1)
print(os.path.isfile(os.__file__), len(open(os.__file__).read()) > 1_000, bool(os.listdir("/usr")), sys.stdout.isatty())
"""
    lines = said(program, SandboxLimits(cpu_seconds=10)).splitlines()
    assert lines == ["asyncio", "thread", "process", "fork", "alarm", "True True True False"]


TOGETHER = """
import os, time
reading, writing = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        block = bytearray(100 << 20)
        block[::4096] = bytes([1]) * len(block[::4096])
        os.write(writing, b"x")
        time.sleep(60)
held = 0
while held < 5:
    held += len(os.read(reading, 5))
print(held)
"""


def test_many_processes_together_use_no_more_memory_than_one() -> None:
    if not cgroup._parents():
        pytest.skip("there is no cgroup to be had here")
    began = time.monotonic()
    outcome = run(TOGETHER, b"", SandboxLimits(cpu_seconds=10, wall_seconds=10.0))
    assert outcome == (b"", False)
    assert time.monotonic() - began < 60.0


def test_no_cgroup_stays_behind() -> None:
    run(FORK_BOMB, b"", SandboxLimits(wall_seconds=1.0))
    assert not [one for parent in cgroup._parents() for one in parent.glob(f"{cgroup._NAME}{os.getpid()}-*")]


def test_without_a_cgroup_it_runs_with_the_other_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_parents", lambda: ())
    assert said("print(1)") == "1\n"
    assert not run("block = bytearray(10**9)", b"", SHORT).finished


def test_where_no_cgroup_can_be_made_any_more_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup, "_parents", lambda: (tmp_path / "gone",))
    with pytest.raises(ServiceError, match="code cannot be run: no cgroup can be made"):
        said("print(1)")


def test_a_machine_without_a_filter_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    reason = sandbox.why_unavailable.__wrapped__()
    assert reason == "no filter of system calls is written for machines of the kind 'riscv64'"


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

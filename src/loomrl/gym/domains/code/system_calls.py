"""What a program in the sandbox may ask of the kernel: a seccomp filter, as bubblewrap takes it.

What is named here is allowed and everything else is answered with ENOSYS, as by a kernel that does not have it: shared
memory, io_uring, bpf, perf, keys, and whatever is invented after this was written. libc knows what to do then: it falls
back, from `clone3` to `clone` for instance. A program for another instruction set (a 32-bit one, x32) is ended, because
its numbers mean other calls.

The filter is classic BPF over `struct seccomp_data`: seccomp(2), linux/filter.h, linux/seccomp.h. It is written out
because libseccomp, which would write it, is one more library of the system that need not be there.
"""

import errno
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

# Numbers on x86_64, and on aarch64, which left out calls that had been replaced: asm/unistd_64.h, asm-generic/unistd.h.
ALLOWED: dict[str, tuple[int, int | None]] = {
    # memory
    "brk": (12, 214),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    # files, all of them read-only
    "access": (21, None),
    "chdir": (80, 49),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fadvise64": (221, 223),
    "fchdir": (81, 50),
    "fcntl": (72, 25),
    "fstat": (5, 80),
    "fstatfs": (138, 44),
    "fsync": (74, 82),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "ioctl": (16, 29),
    "lseek": (8, 62),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "open": (2, None),
    "openat": (257, 56),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "read": (0, 63),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "stat": (4, None),
    "statfs": (137, 43),
    "statx": (332, 291),
    "umask": (95, 166),
    # writing to standard output
    "ftruncate": (77, 46),
    "pwrite64": (18, 68),
    "write": (1, 64),
    "writev": (20, 66),
    # processes and threads
    "arch_prctl": (158, None),
    "clone": (56, 220),
    "execve": (59, 221),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "fork": (57, None),
    "futex": (202, 98),
    "get_robust_list": (274, 100),
    "getpgid": (121, 155),
    "getpgrp": (111, None),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getsid": (124, 156),
    "gettid": (186, 178),
    "kill": (62, 129),
    "rseq": (334, 293),
    "sched_getaffinity": (204, 123),
    "sched_setaffinity": (203, 122),
    "sched_yield": (24, 124),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "vfork": (58, None),
    "wait4": (61, 260),
    "waitid": (247, 95),
    # who one is, and what one may use
    "getcpu": (309, 168),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getgroups": (115, 158),
    "getpriority": (140, 141),
    "getresgid": (120, 150),
    "getresuid": (118, 148),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "getuid": (102, 174),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "uname": (63, 160),
    # signals
    "alarm": (37, None),
    "getitimer": (36, 102),
    "pause": (34, None),
    "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134),
    "rt_sigpending": (127, 136),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "setitimer": (38, 103),
    "sigaltstack": (131, 132),
    # time and chance
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "getrandom": (318, 278),
    "gettimeofday": (96, 169),
    "nanosleep": (35, 101),
    "time": (201, None),
    # pipes, and waiting for them; asyncio and subprocess need these
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_wait": (232, None),
    "getpeername": (52, 205),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pselect6": (270, 72),
    "recvfrom": (45, 207),
    "select": (23, None),
    "sendto": (44, 206),
    "setsockopt": (54, 208),
    "shutdown": (48, 210),
    "socketpair": (53, 199),
}

_OF_ALL_NAMESPACES = 0x7E020000  # CLONE_NEW*; without a namespace of its own a program has none of root's calls to try
_IOCTLS = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_GROW_A_PIPE = 1031  # F_SETPIPE_SZ: what lies in pipes counts for no process
_UNIX = 1

_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|J*|K, BPF_RET|K
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # in `struct seccomp_data`
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


class _Machine(NamedTuple):
    audit_arch: int  # linux/audit.h
    column: int  # of ALLOWED


_MACHINES = {"x86_64": _Machine(0xC000003E, 0), "aarch64": _Machine(0xC00000B7, 1)}


def is_known(machine: str) -> bool:
    """Whether there is a filter for this kind of machine, as `platform.machine` names it."""
    return machine in _MACHINES


def seccomp_filter(machine: str = platform.machine()) -> bytes:
    """The filter for one kind of machine, as an array of `struct sock_filter`; KeyError unless `is_known`."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(_MACHINES[machine]))


def _instructions(machine: _Machine) -> Iterator[tuple[int, int, int, int]]:
    """Each is a code, how many instructions to skip where it holds and where it does not, and a value."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, machine.audit_arch
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32  # no call of any machine has such a number, but those of x32 do
    yield _RETURN, 0, 0, _KILL
    for name, numbers in ALLOWED.items():
        number = numbers[machine.column]
        if number is not None:
            answer = list(_answer(name))
            yield _EQUAL, 0, len(answer), number
            yield from answer
    yield _RETURN, 0, 0, _ERRNO | errno.ENOSYS


def _answer(name: str) -> Iterator[tuple[int, int, int, int]]:
    """To a call that is allowed, or with some arguments. Of those the lower half is read: the kernel reads no more."""
    if name == "clone":
        yield _LOAD, 0, 0, _ARGUMENTS
        yield _ANY_BIT, 0, 1, _OF_ALL_NAMESPACES
        yield _RETURN, 0, 0, _ERRNO | errno.EPERM
    if name == "socketpair":
        yield _LOAD, 0, 0, _ARGUMENTS
        yield _EQUAL, 1, 0, _UNIX
        yield _RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT
    if name == "fcntl":
        yield _LOAD, 0, 0, _ARGUMENTS + 8
        yield _EQUAL, 0, 1, _GROW_A_PIPE
        yield _RETURN, 0, 0, _ERRNO | errno.EPERM
    if name == "ioctl":
        yield _LOAD, 0, 0, _ARGUMENTS + 8
        for place, request in enumerate(_IOCTLS):
            yield _EQUAL, len(_IOCTLS) - place, 0, request
        yield _RETURN, 0, 0, _ERRNO | errno.ENOTTY
    yield _RETURN, 0, 0, _ALLOW

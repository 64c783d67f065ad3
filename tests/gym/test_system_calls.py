"""The filter itself, on both kinds of machines: its programs are interpreted here as the kernel does it."""

import errno
import re
import struct
from pathlib import Path

import pytest

from loomrl.gym.domains.code.system_calls import ALLOWED, is_known, seccomp_filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
OTHERS = (0x40000003, 0x40000028, 0xC00000F3, 0)  # i386, arm, riscv64, none
HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"),),
}
GENERIC = {"newfstatat": "fstatat"}  # the header has the one name for both
ALLOW, KILL = 0x7FFF0000, 0x80000000
NAMESPACES = 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
NO_ARGUMENTS = (0, 0, 0, 0, 0, 0)
UNIX = 1


def refused(number: int) -> int:
    return 0x00050000 | number


def answer(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = NO_ARGUMENTS) -> int:
    """What the kernel would do: a machine with one register, of which the filter uses five instructions."""
    data = struct.pack("=iIQ6Q", number - (number >> 31 << 32), architecture, 0, *arguments)
    instructions = list(struct.iter_unpack("=HBBI", program))
    place, register = 0, 0
    while True:
        code, if_so, if_not, value = instructions[place]
        place += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            (register,) = struct.unpack_from("=I", data, value)
        elif code in (0x15, 0x35, 0x45):  # BPF_JMP | (BPF_JEQ, BPF_JGE, BPF_JSET) | BPF_K
            holds = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[code]
            place += if_so if holds else if_not
        else:
            assert code == 0x06  # BPF_RET | BPF_K
            return int(value)


def numbers_in_headers(machine: str) -> dict[str, int]:
    for path in HEADERS[machine]:
        if path.exists():
            found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
            return {name: int(number) for name, number in found}
    pytest.skip("the kernel's headers are not installed")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    known = numbers_in_headers(machine)
    column = list(ARCHITECTURES).index(machine)
    for name, numbers in ALLOWED.items():
        assert numbers[column] == known.get(GENERIC.get(name, name) if machine == "aarch64" else name), name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_of_all_numbers_those_that_are_named_are_allowed(machine: str) -> None:
    program, column = seccomp_filter(machine), list(ARCHITECTURES).index(machine)
    allowed = {number for numbers in ALLOWED.values() if (number := numbers[column]) is not None}
    with_arguments = {ALLOWED[name][column]: first for name, first in (("socketpair", UNIX), ("ioctl", 0))}
    for number in range(1_000):
        arguments = (with_arguments.get(number, 0), 0x5421, 0, 0, 0, 0)  # FIONBIO
        expected = ALLOW if number in allowed else refused(errno.ENOSYS)
        assert answer(program, ARCHITECTURES[machine], number, arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_another_instruction_set_ends_the_program(machine: str) -> None:
    program = seccomp_filter(machine)
    read = ALLOWED["read"][list(ARCHITECTURES).index(machine)]
    assert read is not None
    for architecture in (*OTHERS, *({*ARCHITECTURES.values()} - {ARCHITECTURES[machine]})):
        assert answer(program, architecture, read) == KILL
    for number in (1 << 30, 1 << 30 | read, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        assert answer(program, ARCHITECTURES[machine], number) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_some_calls_are_allowed_with_some_arguments(machine: str) -> None:
    program, architecture = seccomp_filter(machine), ARCHITECTURES[machine]

    def asked(name: str, *arguments: int) -> int:
        number = ALLOWED[name][list(ARCHITECTURES).index(machine)]
        assert number is not None
        return answer(program, architecture, number, (*arguments, *NO_ARGUMENTS)[:6])

    thread = 0x003D0F00  # what pthread_create asks for
    assert asked("clone", thread) == ALLOW
    for namespace in NAMESPACES:
        assert asked("clone", thread | namespace) == refused(errno.EPERM)
        assert asked("clone", 1 << 32 | namespace) == refused(errno.EPERM)  # the upper half changes nothing
    assert asked("socketpair", UNIX) == ALLOW
    for family in (0, 2, 10, 16, 17, 38):
        assert asked("socketpair", family) == refused(errno.EAFNOSUPPORT)
    for request in (0x5401, 0x541B, 0x5421, 0x5450, 0x5451):
        assert asked("ioctl", 1, request) == ALLOW
    for request in (0, 0x5412, 0x541C, 0x5402, 0x8933, 0x1277):  # TIOCSTI, TIOCLINUX and others
        assert asked("ioctl", 1, request) == refused(errno.ENOTTY)
    assert asked("fcntl", 1, 4, 0o4000) == ALLOW
    assert asked("fcntl", 1, 1031, 1 << 20) == refused(errno.EPERM)


def test_there_is_none_for_other_machines() -> None:
    assert [is_known(one) for one in ("x86_64", "aarch64", "riscv64", "i686")] == [True, True, False, False]
    with pytest.raises(KeyError):
        seccomp_filter("riscv64")

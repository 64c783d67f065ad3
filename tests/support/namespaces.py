"""Hosts on one machine, each with processes, links, mounts and a name of its own, joined by a bridge.

A host is a set of Linux namespaces. Its processes end with its first one, all at once and with -9, and its link with
them; the bridge stands in a namespace, too, so nothing of it is ever seen outside. Needs root.
"""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.projects import until

_MOST = 9  # hosts of a network
INTERFACE = "lan0"  # on every host, beside the loopback one
_WITH_ME = ("setpriv", "--pdeathsig=KILL")  # a process that the kernel ends with the one that began it
_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
# /tmp/ray is where Ray keeps sockets, whose paths must be short. `own` is one path, and another folder on each host.
_FIRST_PROCESS = """
set -e
hostname "$1"; mkdir -p "$2/ray" "$2/own" "$3" /tmp/ray
mount --bind "$2/ray" /tmp/ray; mount --bind "$2/own" "$3"; mount --bind "$5" /etc/hosts
ip link set lo up
until ip -4 -oneline address show dev lan0 2>/dev/null | grep -q inet; do sleep 0.05; done
set +e; cd "$3"
while true; do bash -c "$4"; sleep 1; done
"""


def unavailable() -> str:
    """Why there can be no hosts here; nothing where there can."""
    if missing := [name for name in ("setpriv", "unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"needs {', '.join(missing)} (Debian: util-linux, iproute2)"
    tried = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"needs root and namespaces: {tried.stderr.strip()}"


class Host:
    """One of a network's. `unit` is the shell command that it runs, again when it ends, as a service manager does."""

    def __init__(self, network: "Network", number: int, unit: str, settings: dict[str, str]) -> None:
        self._network, self._number, self._unit, self.settings = network, number, unit, settings
        self.name, self.address = f"host{number}", network.address(number)
        self.own = network.folder / self.name / "own"  # what the host finds at `network.own`
        self._num_starts = 0

    def start(self) -> None:
        """As new, but for what is on its disk."""
        shutil.rmtree(self.own.parent / "ray", ignore_errors=True)
        self._num_starts += 1
        own = [self.name, str(self.own.parent), str(self._network.own), self._unit, str(self._network.names)]
        with (self._network.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_WITH_ME, "unshare", *_NAMESPACES, "bash", "-c", _FIRST_PROCESS, "first", *own],
                env=self._environment(),
                stdout=log,
                stderr=log,
            )
        self._network.join(self.first_pid, self._link, self.address)

    def kill(self) -> None:
        """All its processes, with -9."""
        self._process.kill()  # `--kill-child`: its only child is the first process of the host
        self._process.wait()

    def cut(self) -> None:
        """Its link is dead; whatever it runs goes on."""
        self._network.set_link(self._link, "down")

    def mend(self) -> None:
        """The link works again."""
        self._network.set_link(self._link, "up")

    def popen(self, *command: str, **settings: str) -> "subprocess.Popen[str]":
        """A command on this host, in `network.own`; it ends with the host."""
        enter = ["nsenter", f"--target={self.first_pid}", "--all", f"--wdns={self._network.own}"]
        return subprocess.Popen(
            [*_WITH_ME, *enter, *command],
            env=self._environment() | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def first_pid(self) -> int:
        """The host's first process, as it is called outside."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        until(lambda: bool(children.read_text().strip()), f"{self.name}'s first process", every=0.01)
        return int(children.read_text())

    @property
    def _link(self) -> str:
        return f"link{self._number}n{self._num_starts}"

    def _environment(self) -> dict[str, str]:
        own = self._network.own
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
        binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        places = {"HOME": str(own), "TMPDIR": str(own), "RAY_TMPDIR": "/tmp"}
        return kept | {"PATH": binaries} | places | self.settings


class Network:
    """Hosts on one bridge. `own` is a path that is another folder on every host."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.own, self.names = folder, folder / "own", folder / "hosts"
        names = [f"{self.address(number)} host{number}" for number in range(_MOST)]
        self.names.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._bridge = subprocess.Popen([*_WITH_ME, "unshare", "--net", "sleep", "infinity"])
        self._stack.callback(self._end)
        inside, outside = (Path(f"/proc/{pid}/ns/net") for pid in (self._bridge.pid, "self"))
        until(lambda: inside.readlink() != outside.readlink(), "the bridge's namespace", every=0.01)
        self._ip("link", "add", "bridge", "type", "bridge")
        self._ip("link", "set", "bridge", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end(self) -> None:
        for host in self._hosts:
            host.kill()
        self._bridge.kill()
        self._bridge.wait()

    def address(self, number: int) -> str:
        """Of a host."""
        return f"10.71.0.{number + 1}"

    def host(self, unit: str, **settings: str) -> Host:
        """One more, started; `settings` are environment variables of all its processes."""
        host = Host(self, len(self._hosts), unit, settings)
        host.start()
        self._hosts.append(host)
        return host

    def join(self, pid: int, link: str, address: str) -> None:
        """Give a process's namespace an interface on the bridge."""
        self._ip("link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
        self._ip("link", "set", link, "master", "bridge", "up")
        inside = ["nsenter", f"--target={pid}", "--net", "ip"]
        subprocess.run([*inside, "link", "set", INTERFACE, "up"], check=True)
        subprocess.run([*inside, "address", "add", f"{address}/24", "dev", INTERFACE], check=True)

    def set_link(self, link: str, state: str) -> None:
        """The bridge's end of a host's link: up or down."""
        self._ip("link", "set", link, state)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["nsenter", f"--target={self._bridge.pid}", "--net", "ip", *arguments], check=True)

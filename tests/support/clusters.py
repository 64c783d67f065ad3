"""A Ray cluster across hosts of one machine, and a copy of this project on its head, whose trainings run there."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from platformdirs import user_cache_path

from loomrl.system.files import read_json
from tests.support.namespaces import Host, Network
from tests.support.projects import ROOT, copy_project, until

POLICY = "hosts"
_PORT = 6379
_NODE = "--num-cpus=1 --object-store-memory=80000000 --disable-usage-stats --block"
SECONDS = 600.0  # of one command, at most
_READY = "Ray runtime started"
SETTINGS = {  # of every process on every host
    "PYTHONPATH": str(ROOT / "src"),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "5" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",  # the machine may be busy
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process in each training, for clouds
    "OMP_NUM_THREADS": "1",
    "XDG_CACHE_HOME": str(user_cache_path()),  # machine code is there already
}


class Cluster:
    """So many hosts of one processor each; the first is the head. The project is in the head's `own` folder."""

    def __init__(self, folder: Path, num_hosts: int, **settings: str) -> None:
        self._network = Network(folder)
        self._num_hosts, self._settings = num_hosts, SETTINGS | settings
        self.address = f"{self._network.address(0)}:{_PORT}"
        self.hosts: list[Host] = []
        self._num_seen: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._network.__enter__()
        self.wait_for(self.add())
        for host in [self.add() for _ in range(1, self._num_hosts)]:
            self.wait_for(host)
        copy_project(self.head.own / "project")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._network.__exit__(kind, error, trace)

    @property
    def head(self) -> Host:
        """The first host."""
        return self.hosts[0]

    @property
    def project(self) -> Path:
        """As it is called on the head."""
        return self._network.own / "project"

    def add(self, **settings: str) -> Host:
        """One more host."""
        number = len(self.hosts)
        place = f"--head --port={_PORT} --include-dashboard=false" if number == 0 else f"--address={self.address}"
        unit = f"ray start {place} --node-ip-address={self._network.address(number)} {_NODE}"
        self.hosts.append(self._network.host(unit, **(self._settings | settings)))
        return self.hosts[-1]

    def logs(self) -> str:
        """The end of what each host's Ray has said."""
        logs = [(self._network.folder / f"{host.name}.log") for host in self.hosts]
        return "".join(f"\n{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def wait_for(self, host: Host) -> None:
        """Until it has joined the cluster, since it was last waited for."""
        log = self._network.folder / f"{host.name}.log"
        seen = self._num_seen.get(host.name, 0)
        until(lambda: log.read_text().count(_READY) > seen, f"{host.name} to join", log.read_text, every=0.1)
        self._num_seen[host.name] = log.read_text().count(_READY)

    def restart(self, *hosts: Host) -> None:
        """Kill what of them still lives, and begin them again: the head first, for who asks one that is just beginning
        may wait for minutes."""
        for host in hosts:
            host.kill()
        if self.head in hosts:
            self.head.start()
            self.wait_for(self.head)
        others = [host for host in hosts if host is not self.head]
        for host in others:
            host.start()
        for host in others:
            self.wait_for(host)

    def write_config(self, **training: Any) -> None:
        """The project's CartPole config with a training of one learner on each host, for `POLICY`."""
        configs = self.head.own / "project" / "configs"
        config = yaml.safe_load((configs / "cartpole.yaml").read_text())
        distributed = {"num_learners": self._num_hosts, "address": self.address} | training.pop("distributed", {})
        config["name"] = POLICY
        config["training"] |= {"distributed": distributed} | training
        (configs / f"{POLICY}.yaml").write_text(yaml.safe_dump(config))
        (configs.parent / "params.yaml").write_text(yaml.safe_dump({"policies": [POLICY]}))

    def change(self, **distributed: Any) -> None:
        """The training's `distributed` section."""
        path = self.head.own / "project" / "configs" / f"{POLICY}.yaml"
        config = yaml.safe_load(path.read_text())
        config["training"]["distributed"] |= distributed
        path.write_text(yaml.safe_dump(config))

    def stage(self, name: str, home: str, python: str = sys.executable, **settings: str) -> "subprocess.Popen[str]":
        """A stage of the project, on the head; `home` is the name of its LOOMRL_HOME."""
        return self.command(python, "-m", "loomrl.runs.stages", name, POLICY, home=home, **settings)

    def command(self, *command: str, home: str, **settings: str) -> "subprocess.Popen[str]":
        """In the project, on the head."""
        places = {"LOOMRL_HOME": str(self.project / home), "LOOMRL_EVENTS": str(self.project / home / "events")}
        (self.head.own / "project" / home).mkdir(exist_ok=True)
        paths = {"PYTHONPATH": f"{self.project / 'src'}:{self.project}"}
        return self.head.popen("env", f"--chdir={self.project}", *command, **(places | paths | settings))

    def events(self, home: str) -> list[dict[str, Any]]:
        """What a stage told."""
        path = self.head.own / "project" / home / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def report(self) -> dict[str, Any]:
        """Of the last training."""
        found: dict[str, Any] = read_json(
            self.head.own / "project" / "artifacts" / POLICY / "training" / "training.json"
        )
        return found

    def step(self, home: str) -> int:
        """Environment steps that were told."""
        return max((event["step"] for event in self.events(home) if event["event"] == "metrics"), default=-1)

    def went_on(self, home: str, since: float) -> float:
        """When learners told again of steps they had made, in seconds since the epoch."""
        told = [event for event in self.events(home) if event["event"] == "metrics" and event["time"] > since]
        return float(told[0]["time"])


def finished(command: "subprocess.Popen[str]", code: int = 0) -> str:
    """What a command has printed, which must have ended with this code."""
    output, _ = command.communicate(timeout=SECONDS)
    assert command.returncode == code, f"exit {command.returncode}: {output}"
    return output


def learners_on(host: Host) -> list[int]:
    """The processes of a host that learn."""
    return [pid for pid in _below(host.first_pid) if "RayTrainWorker" in _read(Path(f"/proc/{pid}/cmdline"))]


def _below(pid: int) -> list[int]:
    """All processes that a process began, and those that these began."""
    children = [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(listed).split()
    ]
    return children + [one for child in children for one in _below(child)]


def _read(path: Path) -> str:
    """What the kernel says of a process; nothing where it has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""

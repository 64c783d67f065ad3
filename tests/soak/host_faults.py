"""What befalls hosts that are not killed: a cut link, too little memory, other software, another token, another Ray.

Two learners, and three hosts, so that one can take another's place. Each fault must be told in time, in words that name
it, with every checkpoint intact; where the cluster can go on, training ends with all its steps. Needs root,
namespaces and memory control groups of version 1.
"""

import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loomrl.training.checkpoints import CheckpointStore
from tests.soak.lost_hosts import NUM_STEPS, SOON, prepare
from tests.support.clusters import SECONDS, Cluster, finished, learners_on
from tests.support.namespaces import Host
from tests.support.projects import ROOT, until

_OTHER_RAY, _SYSTEM_PYTHON = "2.58.0", "/usr/bin/python3"
_LONG = 24  # times as many steps, for a host to come back while there is something to learn
_CGROUPS = Path("/sys/fs/cgroup/memory")


def run(folder: Path) -> dict[str, Any]:
    """One after the other, on a cluster with Ray's own settings and on one with `SOON`.

    Raises:
        AssertionError: when a fault is not told as it should be, or a checkpoint is lost.
    """
    found: dict[str, Any] = {}
    for name, settings in (("ray", {}), ("soon", SOON)):
        (folder / name).mkdir()
        with Cluster(folder / name, 3, **settings) as cluster:
            prepare(cluster, num_learners=2)
            found[f"cut_link_seconds_to_go_on_{name}"] = _cut(cluster, "cut")
            if settings:
                found["cut_link_seconds_to_end_without_restarts"] = _cut_without_restarts(cluster)
                found["memory_seconds_to_go_on"] = _short_of_memory(cluster)
                found["other_token_seconds"] = _refused(
                    cluster, "token", "both need the same RAY_AUTH_MODE", RAY_AUTH_TOKEN="6" * 64
                )
                found["other_ray_seconds"] = _other_ray(cluster, folder)
                found["other_python_seconds"] = _other_python(cluster)
                found["other_software_seconds"] = _other_software(cluster, folder)
                found["learners_in_turn"] = _elastic(cluster)
    return found


def _cut(cluster: Cluster, home: str) -> float:
    """Another host takes the place of the one that is cut off."""
    command, host = _under_way(cluster, home)
    cut_at = time.time()
    host.cut()
    finished(command)
    assert cluster.report()["total_env_steps"] == NUM_STEPS
    cluster.restart(host)
    return _seconds(cluster.went_on(home, cut_at) - cut_at)


def _cut_without_restarts(cluster: Cluster) -> float:
    """Training ends, and says why."""
    cluster.change(max_restarts=0)
    command, host = _under_way(cluster, "ended")
    cut_at = time.time()
    host.cut()
    output = finished(command, code=3)
    seconds = time.time() - cut_at
    _demand_told(cluster, "ended", "lost more often than training.distributed.max_restarts 0", output)
    _demand_checkpoints(cluster, "ended")
    cluster.restart(host)
    cluster.change(max_restarts=3)
    return _seconds(seconds)


def _short_of_memory(cluster: Cluster) -> float:
    """The kernel kills the learner on a host that is given less than it uses, and nothing else there."""
    command, host = _under_way(cluster, "memory")
    struck_at = time.time()
    with _limited(host):
        until(lambda: not learners_on(host), "the kernel to kill the learner", every=0.05)
    finished(command)
    assert cluster.report()["total_env_steps"] == NUM_STEPS
    return _seconds(cluster.went_on("memory", struck_at) - struck_at)


@contextmanager
def _limited(host: Host) -> Iterator[None]:
    """A learner's process gets no more memory, beside what it has."""
    (learner, *_) = learners_on(host)
    group = _CGROUPS / f"loomrl-{learner}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("4096")
        (group / "cgroup.procs").write_text(str(learner))
        yield
    finally:
        until(lambda: not (group / "cgroup.procs").read_text().strip(), "the learner to end", every=0.05)
        group.rmdir()


def _other_ray(cluster: Cluster, folder: Path) -> float:
    """A driver with another version of Ray."""
    where = folder / "other_ray"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(where)]
    subprocess.run([*install, f"ray=={_OTHER_RAY}"], check=True)
    paths = f"{cluster.project / 'src'}:{cluster.project}:{where}"
    return _refused(cluster, "other_ray", f"Ray: {_OTHER_RAY}", PYTHONPATH=paths)


def _other_python(cluster: Cluster) -> float | None:
    """A driver with the system's Python, where that is another 3.11 and can use the same packages."""
    asked = subprocess.run([_SYSTEM_PYTHON, "--version"], capture_output=True, text=True, check=False).stdout
    version = asked.removeprefix("Python ").strip()
    if not version.startswith("3.11.") or version == platform.python_version():
        return None
    paths = f"{cluster.project / 'src'}:{cluster.project}:{sysconfig.get_path('purelib')}"
    return _refused(cluster, "other_python", f"Python: {version}", python=_SYSTEM_PYTHON, PYTHONPATH=paths)


def _elastic(cluster: Cluster) -> list[int]:
    """How many learners there are in turn when a host is killed, and begun again: training ends with all steps."""
    prepare(cluster, _LONG * NUM_STEPS, num_learners=3, min_learners=1, resize_interval_seconds=2.0)
    command, host = _under_way(cluster, "elastic")
    host.kill()
    until(lambda: _learners(cluster, "elastic") == [2], "two learners", seconds=SECONDS)
    host.start()
    cluster.wait_for(host)
    until(lambda: len(_learners(cluster, "elastic")) > 1 or command.poll() is not None, "three", seconds=SECONDS)
    finished(command)
    assert cluster.report()["total_env_steps"] >= _LONG * NUM_STEPS
    found = _learners(cluster, "elastic")
    assert found == [2, 3], f"learners went on as {found}"
    return [3, *found]


def _learners(cluster: Cluster, home: str) -> list[int]:
    """How many there were each time they went on from a checkpoint."""
    groups: list[tuple[int, set[int]]] = []  # its step, and who went on from it
    for event in cluster.events(home):
        if event["event"] == "restored":
            if not groups or groups[-1][0] != event["step"] or event["learner"] in groups[-1][1]:
                groups.append((event["step"], set()))
            groups[-1][1].add(event["learner"])
    return [len(learners) for _, learners in groups]


def _other_software(cluster: Cluster, folder: Path) -> float:
    """Both hosts that may learn beside the head have a LoomRL that differs in one file."""
    shutil.copytree(ROOT / "src", folder / "src")
    with (folder / "src" / "loomrl" / "training" / "loop.py").open("a") as file:
        file.write("# another version\n")
    others = cluster.hosts[1:]
    paths = [host.settings["PYTHONPATH"] for host in others]
    for host in others:
        host.settings["PYTHONPATH"] = str(folder / "src")
    cluster.restart(*others)
    seconds = _refused(cluster, "software", "has other software than the one this was begun on: code training loop.py")
    for host, path in zip(others, paths, strict=True):
        host.settings["PYTHONPATH"] = path
    cluster.restart(*others)
    return seconds


def _refused(cluster: Cluster, home: str, message: str, python: str = sys.executable, **settings: str) -> float:
    """How long it took until training was refused with a message."""
    command = cluster.stage("training", home, python, **settings)
    until(lambda: any(event["event"] == "started" for event in cluster.events(home)), "the stage", seconds=SECONDS)
    started = time.time()
    output = finished(command, code=2)
    _demand_told(cluster, home, message, output)
    return _seconds(time.time() - started)


def _under_way(cluster: Cluster, home: str) -> tuple["subprocess.Popen[str]", Host]:
    """A training that has saved a checkpoint, and a host that learns and is not the head."""
    command = cluster.stage("training", home)
    until(
        lambda: cluster.step(home) > NUM_STEPS // 4 or command.poll() is not None, "steps", seconds=SECONDS, every=0.05
    )
    assert command.poll() is None, command.communicate()[0]
    return command, next(host for host in cluster.hosts[1:] if learners_on(host))


def _demand_told(cluster: Cluster, home: str, message: str, output: str) -> None:
    (failure,) = [event["message"] for event in cluster.events(home) if event["event"] == "failed"]
    assert message in failure, f"{failure}\n{output}"
    print(f"{home}: {failure}", flush=True)


def _demand_checkpoints(cluster: Cluster, home: str) -> None:
    (folder,) = (cluster.head.own / "project" / home / "checkpoints").iterdir()
    with CheckpointStore(folder, keep=100) as store:
        assert len(list(store.intact())) == len(list(folder.glob("step-*"))) > 0


def _seconds(number: float) -> float:
    return round(number, 1)

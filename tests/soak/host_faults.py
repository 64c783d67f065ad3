"""What befalls hosts that are not killed: a cut link, too little memory, other software, another token, another Ray.

Two learners, and three hosts, so that one can take another's place. Each fault must be told in time, in words that name
it, with every checkpoint intact; where the cluster can go on, training ends with all its steps. Needs root,
namespaces and memory control groups of version 1.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusters import SECONDS, Cluster, finished, learners_on
from namespaces import Host
from projects import ROOT, until

from loomrl.training.checkpoints import CheckpointStore
from tests.soak.lost_hosts import NUM_STEPS, SOON, prepare

_OTHER_RAY = "2.58.0"
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
                found["other_software_seconds"] = _other_software(cluster, folder)
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


def _other_software(cluster: Cluster, folder: Path) -> float:
    """Both hosts that may learn beside the head have a LoomRL that differs in one file."""
    shutil.copytree(ROOT / "src", folder / "src")
    with (folder / "src" / "loomrl" / "training" / "loop.py").open("a") as file:
        file.write("# another version\n")
    for host in cluster.hosts[1:]:
        host.settings["PYTHONPATH"] = str(folder / "src")
    cluster.restart(*cluster.hosts[1:])
    return _refused(cluster, "software", "has other software than the one this was begun on: code training loop.py")


def _refused(cluster: Cluster, home: str, message: str, **settings: str) -> float:
    """How long it took until training was refused with a message."""
    command = cluster.stage("training", home, **settings)
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

"""Hosts killed with -9 while they learn one policy: each training ends with all its steps, and the unharmed one's policy.

Learners run one on each host of a Ray cluster. Each training is struck once, at a moment drawn from the seed: a host is
killed and begun again, or a learner's process alone is, or the head, with the process that began the training, after
which the same command is run again. Whoever goes on tells the digest of its state, which must be a saved checkpoint's.
"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from clusters import Cluster
from namespaces import Host
from projects import until

from loomrl.distributed.desk import part_of
from loomrl.training.checkpoints import CheckpointStore

NUM_RUNS = {2: 24, 4: 6}  # by the number of hosts
NUM_STEPS = 65_536
_STRIKES = ("host", "host", "learner", "host", "head")  # in turn
_MOST_BEGINNING = 10.0  # seconds of a command, before it learns
_MOST_COMMANDS = 3
_SECONDS = 600.0  # of one command, at most
_SOON = {  # a dead host is noticed after this, in place of half a minute
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


def run(folder: Path, num_runs: dict[int, int] = NUM_RUNS, seed: int = 5) -> dict[str, Any]:
    """Strike so many trainings, by the number of hosts.

    Raises:
        AssertionError: when one does not end as the unharmed one did, or goes on with another state than was saved.
    """
    rng = random.Random(seed)
    runs = [
        one for num_hosts, number in num_runs.items() for one in _runs(folder / f"{num_hosts}", num_hosts, number, rng)
    ]
    return _counts(runs) | {"num_env_steps": NUM_STEPS, "seed": seed}


def _runs(folder: Path, num_hosts: int, num_runs: int, rng: random.Random) -> list[dict[str, Any]]:
    """Those of one cluster."""
    folder.mkdir()
    with Cluster(folder, num_hosts, **_SOON) as cluster:
        _write_config(cluster)
        _finished(cluster.stage("environment", "snapshot"))
        wanted = _finished_training(cluster, "unharmed")
        runs = []
        for number in range(num_runs):
            found = _struck(cluster, f"run{number}", _STRIKES[number % len(_STRIKES)], rng)
            assert found.pop("policy") == wanted, f"run {number} ended with another policy than the unharmed one"
            print(f"run {number}: {found}", flush=True)
            runs.append({"num_hosts": num_hosts, **found})
    return runs


def _write_config(cluster: Cluster) -> None:
    """Eight checkpoints, all of which stay."""
    cluster.write_config(
        total_env_steps=NUM_STEPS,
        checkpoint_interval_env_steps=NUM_STEPS // 8,
        checkpoint_interval_seconds=0,
        keep_checkpoints=100,
        parameters={"num_envs": 16, "rollout_length": 128},
        validation={"interval_env_steps": NUM_STEPS // 2, "num_episodes": 8},
        distributed={"sync_frequency": 8, "hang_timeout_seconds": 120.0},
    )


def _struck(cluster: Cluster, home: str, strike: str, rng: random.Random) -> dict[str, Any]:
    """One training: what became of it."""
    command = cluster.stage("training", home)
    step = rng.randrange(-NUM_STEPS // 6, NUM_STEPS)
    time.sleep(rng.uniform(0.0, _MOST_BEGINNING) if step < 0 else 0.0)  # struck while it begins
    until(lambda: _step(cluster, home) >= step or command.poll() is not None, f"step {step}", seconds=_SECONDS)
    assert command.poll() is None, f"training ended before step {step}: {command.communicate()[0]}"
    struck_at, struck = time.time(), _step(cluster, home)
    if strike == "learner":
        _kill_a_learner(cluster)
    else:
        cluster.restart(*(cluster.hosts if strike == "head" else [rng.choice(cluster.hosts[1:])]))
    num_commands = 1
    while command.wait(_SECONDS) != 0:  # its host was killed, or there were too few hosts when it began
        assert num_commands < _MOST_COMMANDS, f"{home}: {command.communicate()[0]}"
        command = cluster.stage("training", home)
        num_commands += 1
    report = cluster.report()
    assert report["total_env_steps"] == NUM_STEPS, f"{home} ended after {report['total_env_steps']} steps"
    states = _states(cluster, home)
    return {
        "strike": strike,
        "at_step": struck,
        "from_step": max((state["step"] for state in states), default=0),
        "states": [state["digest"][:12] for state in states],
        "num_commands": num_commands,
        "seconds_to_go_on": round(_went_on(cluster, home, struck_at) - struck_at, 1),
        "policy": report["policy_digest"],
    }


def _kill_a_learner(cluster: Cluster) -> None:
    """The process of the one on the head; its host goes on."""
    until(lambda: bool(_learners(cluster.head)), "a learner on the head", every=0.05)
    os.kill(_learners(cluster.head)[0], signal.SIGKILL)


def _learners(host: Host) -> list[int]:
    return [pid for pid in _below(host.first_pid) if "RayTrainWorker" in _read(Path(f"/proc/{pid}/cmdline"))]


def _read(path: Path) -> str:
    """What the kernel says of a process."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def _below(pid: int) -> list[int]:
    """All processes that a process began, and those that these began."""
    children = [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(listed).split()
    ]
    return children + [one for child in children for one in _below(child)]


def _finished(command: "subprocess.Popen[str]") -> None:
    output, _ = command.communicate(timeout=_SECONDS)
    assert command.returncode == 0, f"exit {command.returncode}: {output}"


def _finished_training(cluster: Cluster, home: str) -> str:
    """The digest of its policy."""
    _finished(cluster.stage("training", home))
    return str(cluster.report()["policy_digest"])


def _step(cluster: Cluster, home: str) -> int:
    """Environment steps that were told."""
    return max((event["step"] for event in cluster.events(home) if event["event"] == "metrics"), default=-1)


def _went_on(cluster: Cluster, home: str, since: float) -> float:
    """When learners did again what is measured in steps."""
    told = [event for event in cluster.events(home) if event["event"] == "metrics" and event["time"] > since]
    return float(told[0]["time"])


def _states(cluster: Cluster, home: str) -> list[dict[str, Any]]:
    """What learners said they go on with.

    Raises:
        AssertionError: when that is no saved checkpoint's.
    """
    (folder,) = (cluster.head.own / "project" / home / "checkpoints").iterdir()
    with CheckpointStore(folder, keep=100) as store:
        saved = {checkpoint.step: checkpoint for checkpoint in store.intact()}
    told = [event for event in cluster.events(home) if event["event"] == "restored"]
    for event in told:
        digest = part_of(saved[event["step"]], event["learner"]).digest
        print(f"{home}: learner {event['learner']} at step {event['step']}: {event['digest']}, saved {digest}")
        assert event["digest"] == digest, f"learner {event['learner']} goes on with another state than was saved"
    return told


def _counts(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def seconds(strike: str) -> dict[str, float]:
        found = sorted(one["seconds_to_go_on"] for one in runs if one["strike"] == strike)
        return {"p50": found[len(found) // 2], "max": found[-1]} if found else {}

    return {
        "num_runs": len(runs),
        "num_finished": len(runs),
        "num_restored_states": sum(len(one["states"]) for one in runs),
        "num_other_states": 0,
        "seconds_to_go_on": {strike: seconds(strike) for strike in dict.fromkeys(_STRIKES)},
        "runs": runs,
    }

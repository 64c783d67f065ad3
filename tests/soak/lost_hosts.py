"""Hosts killed with -9 while they learn one policy: each training ends with all its steps and the unharmed policy.

Learners run one on each host of a Ray cluster. Each training is struck once, at a moment drawn from the seed: a host is
killed and begun again, or a learner's process alone is, or the head, with the process that began the training, after
which the same command is run again. Whoever goes on tells the digest of its state, which must be a saved checkpoint's.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from loomrl.training.checkpoints import CheckpointStore
from loomrl.training.distributed.learners.coordinator import part_of
from tests.support.clusters import POLICY, SECONDS, Cluster, finished, learners_on
from tests.support.projects import until

RUNS = {2: range(24), 4: range(24, 30)}  # by the number of hosts
NUM_STEPS = 131_072
_STRIKES = ("host", "host", "learner", "host", "head")  # in turn
_MOST_BEGINNING = 10.0  # seconds of a command, before it learns
_MOST_COMMANDS = 3
SOON = {  # a dead host is noticed after this, in place of half a minute
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


def run(folder: Path, numbers: dict[int, range] = RUNS, seed: int = 5) -> dict[str, Any]:
    """Strike trainings, by the number of hosts; each draws from the seed and its number.

    Raises:
        AssertionError: when one does not end as the unharmed one did, or goes on with another state than was saved.
    """
    runs, life_cycles = [], {}
    for num_hosts, chosen in numbers.items():
        where = folder / f"{num_hosts}"
        where.mkdir()
        with Cluster(where, num_hosts, **SOON) as cluster:
            prepare(cluster)
            runs += _runs(cluster, num_hosts, chosen, seed)
            life_cycles[f"{num_hosts}"] = _life_cycle(cluster)
    return counts(runs) | {"num_env_steps": NUM_STEPS, "seed": seed, "life_cycle_seconds_by_hosts": life_cycles}


def _runs(cluster: Cluster, num_hosts: int, numbers: range, seed: int) -> list[dict[str, Any]]:
    """Those of one cluster."""
    wanted = _finished_training(cluster, "unharmed")
    runs = []
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        found = _struck(cluster, f"run{number}", _STRIKES[number % len(_STRIKES)], rng)
        assert found.pop("policy") == wanted, f"run {number} ended with another policy than the unharmed one"
        print(f"run {number}: {found}", flush=True)
        runs.append({"number": number, "num_hosts": num_hosts, **found})
    return runs


def _life_cycle(cluster: Cluster) -> int:
    """Seconds of one whole, from the snapshot to a champion; learners are on all hosts."""
    started = time.monotonic()
    shutil.rmtree(cluster.head.own / "project" / "artifacts")
    loomrl = str(Path(sys.executable).with_name("loomrl"))
    command = cluster.command(loomrl, "run", f"configs/{POLICY}.yaml", home="life_cycle")
    print(finished(command), flush=True)
    shown = cluster.command(loomrl, "policy", "show", f"{POLICY}@champion", "--json", home="life_cycle")
    output = finished(shown)
    assert json.loads(output[output.index("{") :])["version"] == "1"
    assert cluster.report()["total_env_steps"] == NUM_STEPS
    return round(time.monotonic() - started)


def prepare(cluster: Cluster, num_steps: int = NUM_STEPS, **distributed: Any) -> None:
    """A training with checkpoints, all of which stay, eight of them in `NUM_STEPS`, and the snapshot it learns in."""
    cluster.write_config(
        total_env_steps=num_steps,
        checkpoint_interval_env_steps=NUM_STEPS // 8,
        checkpoint_interval_seconds=0,
        keep_checkpoints=100,
        parameters={"num_envs": 16, "rollout_length": 128},
        validation={"interval_env_steps": NUM_STEPS // 2, "num_episodes": 8},
        distributed={"sync_frequency": 8, "hang_timeout_seconds": 120.0} | distributed,
    )
    finished(cluster.stage("environment", "snapshot"))


def _struck(cluster: Cluster, home: str, strike: str, rng: random.Random) -> dict[str, Any]:
    """One training: what became of it."""
    command = cluster.stage("training", home)
    step = rng.randrange(-NUM_STEPS // 6, NUM_STEPS * 3 // 4)
    time.sleep(rng.uniform(0.0, _MOST_BEGINNING) if step < 0 else 0.0)  # struck while it begins
    until(lambda: cluster.step(home) >= step or command.poll() is not None, f"step {step}", seconds=SECONDS, every=0.05)
    assert command.poll() is None, f"training ended before step {step}: {command.communicate()[0]}"
    struck_at, struck = time.time(), cluster.step(home)
    if strike == "learner":
        until(lambda: bool(learners_on(cluster.head)), "a learner on the head", every=0.05)
        os.kill(learners_on(cluster.head)[0], signal.SIGKILL)  # its host goes on
    else:
        cluster.restart(*(cluster.hosts if strike == "head" else [rng.choice(cluster.hosts[1:])]))
    num_commands, output = 1, command.communicate(timeout=SECONDS)[0]
    while command.returncode != 0:  # its host was killed, or there were too few hosts when it began
        told = [event["message"] for event in cluster.events(home) if event["event"] == "failed"]
        print(f"{home}: command {num_commands} ended with {command.returncode}: {told}", flush=True)
        assert num_commands < _MOST_COMMANDS, f"{home}: exit {command.returncode}: {output}{cluster.logs()}"
        command = cluster.stage("training", home)
        num_commands, output = num_commands + 1, command.communicate(timeout=SECONDS)[0]
    report = cluster.report()
    assert report["total_env_steps"] == NUM_STEPS, f"{home} ended after {report['total_env_steps']} steps"
    states = _states(cluster, home)
    found = {
        "strike": strike,
        "at_step": struck,
        "from_step": max((state["step"] for state in states), default=0),
        "states": [state["digest"][:12] for state in states],
        "num_commands": num_commands,
        "seconds_to_go_on": round(cluster.went_on(home, struck_at) - struck_at, 1),
        "policy": report["policy_digest"],
    }
    demand_resumed(found)
    return found


def demand_resumed(found: dict[str, Any]) -> None:
    """Raise `AssertionError` where a struck training began again from an older state than the last segment's before the
    blow, or needed another command though neither the head was struck nor had it not begun."""
    segment = NUM_STEPS // 8
    newest = max(found["at_step"] - segment, 0) // segment * segment  # the last one's may be on its way
    assert found["from_step"] >= newest, f"began again from {found['from_step']}: {found}"
    assert found["num_commands"] == 1 or found["strike"] == "head" or found["at_step"] < 0, found


def _finished_training(cluster: Cluster, home: str) -> str:
    """The digest of its policy."""
    finished(cluster.stage("training", home))
    return str(cluster.report()["policy_digest"])


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


def counts(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of runs that all ended well."""

    def seconds(strike: str) -> dict[str, float]:
        found = sorted(one["seconds_to_go_on"] for one in runs if one["strike"] == strike)
        return {"p50": found[len(found) // 2], "max": found[-1]} if found else {}

    return {
        "num_runs": len(runs),
        "num_restored_states": sum(len(one["states"]) for one in runs),
        "seconds_to_go_on": {strike: seconds(strike) for strike in dict.fromkeys(_STRIKES)},
        "runs": runs,
    }

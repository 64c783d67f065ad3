"""What crosses the network, beside what learners say they send: `python benchmarks/wire.py`.

Two learners train in a network namespace of their own, so that its loopback carries their packets and nothing else:
headers, acknowledgements and what `bytes_sent` leaves out are all counted. Figures are of one learner and one update;
they go to `benchmarks/results/wire.json`. Needs `unshare` (util-linux) and `ip` (iproute2), and no rights.
"""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import compression
from loomrl.system.files import write_json
from process_group import ProcessGroup

RESULTS = compression.PROJECT / "benchmarks" / "results" / "wire.json"
INSIDE = "--inside"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
SETTINGS = [compression.WHOLE, "every_update_int8", "every_update_top_k"]
NUM_LEARNERS, UPDATES = 2, 20


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """Bytes of an update by task and setting, as counted and as carried."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, ProcessGroup(NUM_LEARNERS) as group:
        for task in compression.TASKS.values():
            snapshot = compression.taken(task, Path(folder))
            figures = {setting: carried(task, setting, snapshot, group) for setting in SETTINGS}
            whole = figures[compression.WHOLE]
            found[task.name] = {
                setting: one | {f"times_fewer_{kind}": whole[kind] / one[kind] for kind in one}
                for setting, one in figures.items()
            }
            print(task.name, found[task.name], flush=True)
    return found


def carried(task: compression.Task, setting: str, snapshot: Path, group: ProcessGroup) -> dict[str, float]:
    """Of a training of a few updates."""
    size = task.parameters["num_envs"] * task.parameters["rollout_length"]
    before = loopback_bytes()
    row = compression.measure(
        replace(task, total_env_steps=UPDATES * size), setting, 1, snapshot, {NUM_LEARNERS: group}
    )
    return {
        "counted": row["bytes_per_update"],
        "carried": (loopback_bytes() - before) / NUM_LEARNERS / UPDATES,
    }


def loopback_bytes() -> int:
    """Bytes that this namespace's loopback has sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (fields,) = (line.split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[9])


def main() -> None:
    if sys.argv[1:] != [INSIDE]:
        os.execvp(NAMESPACE[0], [*NAMESPACE, sys.executable, __file__, INSIDE])
    write_json(RESULTS, {"bytes_of_an_update": measure(), "learners": NUM_LEARNERS})


if __name__ == "__main__":
    main()

"""What crosses the network, beside what learners say they send: `python benchmarks/wire.py`.

Two learners train in a network namespace of their own, so that its loopback carries their packets and nothing else:
headers, acknowledgements and what `bytes_sent` leaves out are all counted. Figures are of one learner and one update;
they go to `benchmarks/results/wire.json`. Needs `unshare` (util-linux) and `ip` (iproute2), and no rights.
"""

import os
import sys
import tempfile
from pathlib import Path

import compression
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshot import take_snapshot
from loomrl.files import write_json
from process_group import ProcessGroup

RESULTS = compression.PROJECT / "benchmarks" / "results" / "wire.json"
INSIDE = "--inside"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
SETTINGS = [compression.WHOLE, "every_update_int8", "every_update_top_k"]
NUM_LEARNERS = 2


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """Bytes of an update by task and setting, as counted and as carried."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, ProcessGroup(NUM_LEARNERS) as group:
        for task, of in compression.TASKS.items():
            snapshot = Path(folder) / task
            take_snapshot(EnvironmentConfig(id=of.environment, fingerprint_episodes=1), compression.PROJECT, snapshot)
            found[task] = {setting: carried(task, setting, snapshot, group) for setting in SETTINGS}
            whole = found[task][compression.WHOLE]
            for figures in found[task].values():
                figures |= {f"times_fewer_{kind}": whole[kind] / figures[kind] for kind in ("counted", "carried")}
            print(task, found[task], flush=True)
    return found


def carried(task: str, setting: str, snapshot: Path, group: ProcessGroup) -> dict[str, float]:
    """One training's figures."""
    before = loopback_bytes()
    row = compression.measure(task, setting, 1, snapshot, {NUM_LEARNERS: group})
    parameters = compression.TASKS[task].parameters
    updates = row["total_env_steps"] / (parameters["num_envs"] * parameters["rollout_length"])
    return {
        "counted": row["bytes_per_update"],
        "carried": (loopback_bytes() - before) / NUM_LEARNERS / updates,
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

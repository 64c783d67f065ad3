"""Kill -9 a first command at every operation on files, and at random moments: the home works afterwards.

The command makes all that a home holds: MLflow's and LoomDB's tables, the keys, an audit log.
A process that has imported everything forks one that is killed, and then one that runs the same command to its end in
what that left. `interrupted.c` is preloaded: it tears a write in half, and leaves out a sync, rename or removal. What
is only lost when the machine itself stops is not tried here.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.resumable import Store

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "first_commands.json"
SOURCES = (
    "tests/soak/first_commands.py", "tests/support/interrupted.c", "src/loomrl/storage/registry/connection.py",
    "src/loomrl/storage/registry/mlflow_database.py", "src/loomrl/storage/loomdb",
    "src/loomrl/system/security/signing_keys.py", "src/loomrl/system/files.py",
    "src/loomrl/storage/audit/log.py",
)  # fmt: skip
NUM_KILLS, SEED = 60, 19
Process = subprocess.Popen[str]


def run(folder: Path) -> dict[str, Any]:
    """Every operation once, and 60 kills at random moments; what is kept already is not tried again.

    Raises:
        AssertionError: when a home does not work after a kill.
    """
    store, rng = Store(RESULTS, ROOT), random.Random(SEED)
    with forking(folder) as server:
        whole = store.made("whole", SOURCES, lambda: ask(server, folder / "home"))
        tried = {f"operation {at}": {"at": at} for at in range(1, whole["operations"] + 1)}
        tried |= {f"moment {n}": {"after": rng.uniform(0, whole["seconds"])} for n in range(NUM_KILLS)}
        for key, when in tried.items():
            store.made(key, SOURCES, lambda when=when: strike(server, folder / "home", **when))
    store.keep(["whole", *tried])
    struck = [store.values()[key]["killed"] for key in tried]
    return {
        "operations": whole["operations"],
        "moments": NUM_KILLS,
        "killed": sum(struck),
        "homes_that_work": len(tried),
    }


def strike(server: Process, home: Path, **when: float) -> dict[str, Any]:
    """Kill a first command in an empty home, then run it again there.

    Raises:
        AssertionError: when it fails then, or left a broken database.
    """
    shutil.rmtree(home, ignore_errors=True)
    first, second = ask(server, home, **when), ask(server, home)
    assert second["code"] == 0, f"killed {when}, the next command failed: {second['error']}"
    for path in home.glob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"killed {when}: {path.name}"
    return {"killed": first["code"] == -signal.SIGKILL}


@contextmanager
def forking(folder: Path) -> Iterator[Process]:
    """A process that has imported everything and forks one for each line that `ask` writes."""
    library = folder / "interrupted.so"
    source = ROOT / "tests" / "support" / "interrupted.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    unset = ("MLFLOW_TRACKING_URI", "LOOMRL_DATABASE_URL", "LOOMRL_SIGNING_KEY", "LOOMRL_MODEL_SIGNING_KEY")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    environment = {**kept, "LD_PRELOAD": str(library), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.soak.first_commands"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


def ask(server: Process, home: Path, **when: float) -> dict[str, Any]:
    """Run the command in a home: to its end, or until it is killed `at` an operation or `after` so many seconds."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({"home": str(home), **when}) + "\n")
    server.stdin.flush()
    told: dict[str, Any] = json.loads(server.stdout.readline())
    return told


def first_command() -> None:
    """Make everything that a home holds, or read it where it is there already."""
    from loomrl.storage.audit.log import AuditLog
    from loomrl.storage.audit.records import record
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.registry import Registry
    from loomrl.system.security.signing_keys import ED25519, ELLIPTIC, private_key

    assert Registry().policies() == []
    LoomDB.open().close()
    for kind in (ED25519, ELLIPTIC):
        private_key(kind)
    log = AuditLog("cartpole", "server")
    log.append([record("note", text="a first record")])
    log.close()


def _serve() -> None:
    """Fork for each line of stdin; answers one line each: exit code, error, operations, seconds."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - paid once, not in every fork
    from mlflow import MlflowClient  # noqa: F401

    for line in sys.stdin:
        wanted = json.loads(line)
        os.environ["LOOMRL_HOME"] = wanted["home"]
        print(json.dumps(_forked(wanted, first_command)), flush=True)


def _forked(wanted: dict[str, Any], command: Callable[[], None]) -> dict[str, Any]:
    reading, writing = os.pipe()
    started, child = time.monotonic(), os.fork()
    if child == 0:
        _child(writing, wanted.get("at", 0), command)
    os.close(writing)
    if "after" in wanted:
        time.sleep(wanted["after"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        told = json.loads(pipe.read() or "{}")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "error": "", "operations": 0, "seconds": time.monotonic() - started, **told}


def _child(writing: int, at: int, command: Callable[[], None]) -> None:
    library, error = ctypes.CDLL(None), ""
    library.interrupt_at(at)
    try:
        command()
    except BaseException as raised:  # noqa: BLE001 - the parent is told
        error = f"{type(raised).__name__}: {raised}"
    told = {"operations": library.operations(), "error": error}
    library.interrupt_at(-1)
    os.write(writing, json.dumps(told).encode())
    os._exit(1 if error else 0)


if __name__ == "__main__":
    _serve()

"""A person intervenes while something is broken: the kill switch and an override, in force, on record, and kept.

A real policy server, with a registry behind a real MLflow server, LoomDB in PostgreSQL, a disk of its own, and a clock
of its own, of which one or two are broken: before it starts, or while it runs. Then a second host is asked, the server
is killed and started again, and what was broken is mended: both hosts agree.
"""

import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, text

from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import chains, records
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry
from tests.support.champions import make_champion
from tests.support.databases import running_postgresql
from tests.support.jumping_clock import JumpingClock
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.relay import Relay
from tests.support.small_disk import SmallDisk, small_disk

OBS, DAY = OBSERVATIONS[0].tolist(), 86_400.0
BY = {"person": "Ada", "reason": "a fault"}
FAULTS = ("registry", "loomdb", "mlflow", "disk", "clock ahead", "clock behind", "clocks of hosts")
MOMENTS = ("start", "running")
_PATIENCE_SECONDS = 300.0
_HOST = """
import json, sys
from loomrl.storage.loomdb.database import LoomDB
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.plan import KillSwitch
controls = Controls("cartpole")
for line in sys.stdin:
    for act in line.split():
        if act == "exchange":
            with LoomDB.open(wait_seconds=2) as database:
                controls.exchange(database)
        else:
            switch = KillSwitch(person="Bob", reason="another host") if act == "on" else None
            controls.set_kill_switch(switch, "test", "another host")
    orders = controls.orders
    overrides = sorted(one.agent_id for one in orders.active_overrides())
    print(json.dumps([orders.kill_switch is not None, overrides]), flush=True)
"""


@dataclass
class Services:
    """What servers of all cases share, and a home that a server has run in."""

    folder: Path
    mlflow: int  # ports
    postgresql: str
    home: Path
    clock: JumpingClock  # of the servers of all cases, one case after the other: they can be copies of one process


@contextmanager
def services(folder: Path, mlflow_database: Path | None = None) -> Iterator[Services]:
    """Started, with a champion registered, and a first server's home; MLflow begins with this database, or an empty
    one."""
    with ExitStack() as stack:
        if mlflow_database is not None:
            shutil.copy2(mlflow_database, folder / "mlflow.db")
        postgresql = stack.enter_context(running_postgresql())
        port = stack.enter_context(_mlflow(folder))
        found = Services(folder, port, postgresql, folder / "home", JumpingClock(folder))
        uri = f"http://127.0.0.1:{port}"
        environment = {"LOOMRL_HOME": str(found.home), "MLFLOW_TRACKING_URI": uri}
        previous = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            version = Registry().register("cartpole", discrete_folder(folder / "policy"), "run").version
            make_champion(Registry(), version)
            for workers in (1, 2):
                options = {"server": f"orders-{workers}", "workers": workers, "ready_seconds": _PATIENCE_SECONDS}
                with ServerProcess("cartpole", **options) as server, server.client() as client:
                    client.set_plan(fallback={"action": 0}, **BY)
                    client.decide("a", OBS)
                    _until((found.home / "roles" / "cartpole.json").is_file)
        finally:
            for name, value in previous.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        yield found


class World:
    """One case: a server of its own, on a disk of its own, that finds services by ways that can be cut."""

    def __init__(self, stack: ExitStack, given: Services, name: str, workers: int) -> None:
        self.folder, self.given = given.folder / name, given
        self.disk: SmallDisk = stack.enter_context(small_disk(self.folder / "disk", 64 * 2**20, 4_096))
        self.home = self.folder / "disk" / "home"
        shutil.copytree(given.home, self.home, ignore=shutil.ignore_patterns("*.sock"))
        database = f"case_{abs(hash(name))}"
        admin = create_engine(given.postgresql, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {database}"))
        admin.dispose()
        server = given.postgresql.rpartition("/")[0]
        self.database = f"{server}/{database}"
        LoomDB.open(self.database).close()
        port = int(server.rpartition(":")[2])
        self.loomdb, self.mlflow = stack.enter_context(Relay(port)), stack.enter_context(Relay(given.mlflow))
        self.clock, self.others = given.clock, JumpingClock(self.folder / "clock")
        self.clock.jump(0.0)
        self._registry: sqlite3.Connection | None = None
        other = {
            **os.environ,
            **self.others.environment,
            "LOOMRL_HOME": str(self.folder / "other"),
            "LOOMRL_DATABASE_URL": self.database,
        }
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.other = stack.enter_context(subprocess.Popen([sys.executable, "-c", _HOST], env=other, **pipes))
        stack.callback(self.other.kill)
        environment = {
            "LOOMRL_HOME": str(self.home),
            "LOOMRL_DATABASE_URL": self.database.replace(f":{port}/", f":{self.loomdb.port}/"),
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.mlflow.port}",
            **self.clock.environment,
        }
        self.options: dict[str, Any] = {
            "workers": workers, "server": f"orders-{workers}", "environment": environment, "rate": 1e6,
            "ready_seconds": _PATIENCE_SECONDS,
        }  # fmt: skip

    def ask_other(self, *acts: str) -> str:
        """What a host that reaches LoomDB, with another clock, does and then has in force."""
        assert self.other.stdin is not None
        assert self.other.stdout is not None
        self.other.stdin.write(" ".join(acts) + "\n")
        has_answered, _, _ = select.select([self.other.stdout], [], [], _PATIENCE_SECONDS)
        assert has_answered, "the other host did not answer in five minutes"
        answer = self.other.stdout.readline().strip()
        assert answer, f"the other host ended with {self.other.wait()}; its errors are above"
        return answer

    def breaks(self, faults: Sequence[str], moment: str) -> None:
        """Have these broken from now on; the disk last, for whatever else is still written."""
        for fault in sorted(faults, key="disk".__eq__):
            self._break(fault, moment)

    def mend(self, faults: Sequence[str]) -> None:
        """Have them whole again."""
        for fault in faults:
            self._mend(fault)

    def _break(self, fault: str, moment: str) -> None:
        if fault == "registry":
            self._registry = sqlite3.connect(self.given.folder / "mlflow.db", isolation_level=None, timeout=60.0)
            self._registry.execute("BEGIN EXCLUSIVE")
        elif fault in ("loomdb", "mlflow"):
            relay: Relay = getattr(self, fault)
            relay.close() if moment == "start" else relay.hang()
        elif fault == "disk":
            self.disk.fill()
        elif fault == "clocks of hosts":
            self.others.jump(DAY)
            self.ask_other("exchange", "on", "off", "exchange")  # by a wrong clock, and before what comes now
        else:
            self.clock.jump(DAY if fault == "clock ahead" else -DAY)

    def _mend(self, fault: str) -> None:
        if fault == "registry" and self._registry is not None:
            self._registry.close()
            self._registry = None
        elif fault in ("loomdb", "mlflow"):
            getattr(self, fault).open()
        elif fault == "disk":
            self.disk.make_room()
        elif fault == "clocks of hosts":
            self.others.jump(0.0)
        else:
            self.clock.jump(0.0)


def run(given: Services, faults: Sequence[str], moments: Sequence[str], workers: int = 1) -> dict[str, Any]:
    """One case: broken before the server starts, while it runs, or (mended in between) both.

    Returns after how many seconds each order was in force, by moment.

    Raises:
        AssertionError: when one is not in force, not on record, or does not survive.
    """
    name = "-".join((*faults, *moments, str(workers))).replace(" ", "_")
    seconds: dict[str, Any] = {}
    with ExitStack() as stack:
        world = World(stack, given, name, workers)
        if "start" in moments:
            world.breaks(faults, "start")
        with _server(world) as server, server.client() as client:
            if "start" in moments:
                seconds["start"] = _intervene(client, is_recorded="disk" not in faults)
                _check_on_record(world)
            if "running" in moments:
                if "start" in moments:
                    world.mend(faults)
                _until(client.is_ready)
                client.set_kill_switch(False, **BY)
                client.clear_override()
                client.set_override(action=1, agent_id="early", expires_in_seconds=3_600, **BY)
                world.breaks(faults, "running")
                seconds["running"] = _intervene(client, is_recorded="disk" not in faults)
                _check_on_record(world)
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
        with _server(world) as server, server.client() as client:
            _until(lambda: _answers(client) and _is_in_force(client))
            world.mend(faults)
            _until(client.is_ready)
            _until(lambda: _role(client, "a") == "kill_switch" and _role(client, "b") == "override")
            agents = ["b", "early"] if "running" in moments else ["b"]
            _until(lambda: world.ask_other("exchange") == json.dumps([True, agents]))
        _check_on_record(world)
    return seconds


@contextmanager
def _server(world: World) -> Iterator[ServerProcess]:
    """One that answers, ready or not; where something fails, with what it wrote."""
    with ServerProcess("cartpole", wait_ready=False, **world.options) as server:
        try:
            yield server
        except BaseException as error:
            code = None if server.process is None else server.process.poll()
            error.add_note(f"exit code {code}; the server wrote:\n{server.log()}")
            raise


def _intervene(client: PolicyClient, is_recorded: bool) -> dict[str, float]:
    """Order, and see what is decided from then on: what was ordered, or nothing where no decision can be recorded."""
    _until(lambda: _answers(client))
    seconds = {}
    for what, order, agent_id in (
        ("kill_switch", lambda: client.set_kill_switch(True, **BY), "a"),
        ("override", lambda: client.set_override(action=1, agent_id="b", **BY), "b"),
    ):
        started = time.monotonic()
        order()
        role = _role(client, agent_id)
        seconds[what] = round(time.monotonic() - started, 3)
        # A full disk may leave room for a record in a segment's last page.
        assert role == what or (role == "507" and not is_recorded), f"{what}: {role}"
    assert _is_in_force(client)
    return seconds


def _check_on_record(world: World) -> None:
    os.environ["LOOMRL_HOME"], home = str(world.home), os.environ.get("LOOMRL_HOME")
    try:
        done = [entry for entry in records("cartpole") if entry["kind"] == "operation" and entry["document"]]
        told = {(entry["operation"], entry["agent_id"]) for entry in done if entry["reason"] == BY["reason"]}
        assert {("kill_switch", None), ("override", "b")} <= told
        for chain in chains("cartpole"):
            report = verify_chain(chain)
            assert report.intact, report.findings
    finally:
        os.environ.pop("LOOMRL_HOME") if home is None else os.environ.update(LOOMRL_HOME=home)


def _role(client: PolicyClient, agent_id: str) -> str:
    """Who decides; the status where nothing is decided."""
    try:
        return client.decide(agent_id, OBS).role
    except Refused as refused:
        return str(refused.status)


def _is_in_force(client: PolicyClient) -> bool:
    agents = [override["agent_id"] for override in client.overrides()]
    return client.plan()["kill_switch"] is not None and "b" in agents


def _answers(client: PolicyClient) -> bool:
    try:
        return bool(client.status())
    except httpx.HTTPError:
        return False


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in five minutes"
        time.sleep(0.05)


@contextmanager
def _mlflow(folder: Path) -> Iterator[int]:
    """The port of an MLflow server, its database in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}?timeout=0.5"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "mlflow.log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True)
    try:
        _until(lambda: _is_healthy(port))
        yield port
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.HTTPError:
        return False

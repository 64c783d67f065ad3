"""Empty databases, and a PostgreSQL server of the tests' own, on a free port, run by a user who is not root."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text


def binaries() -> Path:
    """The folder with `initdb` and `postgres`; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    pytest.fail(
        "no PostgreSQL server found: run `apt-get install postgresql`, or set LOOMRL_TEST_POSTGRESQL=off "
        "to leave these tests out"
    )


def server_user() -> str | None:
    """PostgreSQL refuses to run as root; any other user runs it as itself."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a fresh server's database `postgres`."""
    with running_postgresql() as url:
        yield url


@contextmanager
def running_postgresql() -> Iterator[str]:
    """The same without a test."""
    if os.environ.get("LOOMRL_TEST_POSTGRESQL") == "off":
        pytest.skip("LOOMRL_TEST_POSTGRESQL=off")
    programs, user, port = binaries(), server_user(), free_port()
    # Directly below /tmp: a socket's path must be short, and pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="loompg-", dir="/tmp"))
    if user is not None:
        shutil.chown(folder, user)

    def start(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True, check=False, timeout=120)

    data = str(folder / "data")
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off -c full_page_writes=off"
    try:
        initdb = [str(programs / "initdb"), "-D", data, "-U", "loomrl", "-A", "trust", "-E", "UTF8", "--locale=C"]
        control = [str(programs / "pg_ctl"), "-D", data, "-w", "-t", "60"]
        for command in (initdb, [*control, "-l", str(folder / "log"), "-o", options, "start"]):
            done = start(*command)
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        yield f"postgresql+psycopg://loomrl@127.0.0.1:{port}/postgres"
        start(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgresql_url(postgresql_server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"loom_{abs(hash(request.node.nodeid))}"
    admin = create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield postgresql_server.rpartition("/")[0] + f"/{name}"
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'loom.db'}"
    url: str = request.getfixturevalue("postgresql_url")
    return url


@contextmanager
def tables_locked(url: str, *tables: str) -> Iterator[None]:
    """A transaction of PostgreSQL that holds these tables, against readers too, as long as the block lasts."""
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"))
        yield
    engine.dispose()

"""One hub to a database: two would each hand out the groups of the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout
from sqlalchemy import Engine, text

from loomrl.errors import ServiceError

_ADVISORY_LOCK = 0x100D_B002  # any number that nobody else in the database uses
_WAIT_SECONDS = 10.0  # for a hub that ends just now


@contextmanager
def exclusive_lock(engine: Engine) -> Iterator[None]:
    """Keep other hubs out of a database until the block or this process ends. Waits 10 s for one that ends just now.

    Raises:
        ServiceError: when another hub has the database.
        SQLAlchemyError: when a PostgreSQL server cannot be reached.
        OSError: when the lock file beside an SQLite database cannot be made.
    """
    taken = ServiceError(
        f"another hub has the database at {engine.url.render_as_string(hide_password=True)}: stop it, or give this one "
        "a database of its own (--database-url)"
    )
    if engine.dialect.name == "sqlite":
        try:
            lock = FileLock(f"{engine.url.database}.lock", timeout=_WAIT_SECONDS).acquire()
        except Timeout as error:
            raise taken from error
        with lock:
            yield
        return
    with engine.connect() as connection:  # the lock is the connection's: it ends with the process
        deadline = time.monotonic() + _WAIT_SECONDS
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_LOCK}):
            if time.monotonic() > deadline:
                raise taken
            time.sleep(0.1)
        connection.commit()
        yield

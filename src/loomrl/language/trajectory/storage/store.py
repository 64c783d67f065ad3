"""Where a hub's state outlives its process: SQLite by default, PostgreSQL by URL."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any, Self

import orjson
from sqlalchemy import Connection, Engine, Table, bindparam, delete, event, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from loomrl.errors import ServiceError
from loomrl.language.trajectory.state.changes import Changes, GroupBatch, Post
from loomrl.language.trajectory.state.environments import HubEnvironment
from loomrl.language.trajectory.state.fragments import Fragment
from loomrl.language.trajectory.state.hub import HubState, StoredHub
from loomrl.language.trajectory.state.packing import TrajectoryGroup
from loomrl.language.trajectory.storage import tables
from loomrl.language.trajectory.storage.alone import exclusive_lock
from loomrl.storage.loomdb.engine import WRITES, make_engine
from loomrl.system.home import home

URL_VARIABLE = "LOOMRL_HUB_DATABASE_URL"
_MAX_VALUES = 500  # in one condition
_GROUP_COLUMNS = [column for column in tables.groups.columns if column.name not in ("checksum", "deflated")]


def hub_url() -> str:
    """The store's SQLAlchemy URL: `$LOOMRL_HUB_DATABASE_URL`, else that of the SQLite file `hub.db` in the home."""
    return os.environ.get(URL_VARIABLE) or f"sqlite:///{home() / 'hub.db'}"


class Store:
    """A hub's database. Calls block, and are safe from several threads. Every method but `close` raises ServiceError
    when the database cannot be reached or fails."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(**{WRITES: True})
        self._lock = ExitStack()  # what keeps others out

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """Open the database at a URL (None: `hub_url()`), make its tables where there are none, and lock other hubs out
        until `close`.

        Raises:
            ConfigError: when the URL is not one, or its driver is not installed.
            ArtifactError: when the folder of an SQLite file cannot be made.
            ServiceError: when it cannot be reached, another hub has it, or a LoomRL with other tables made it.
        """
        engine = make_engine(url or hub_url())
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _prepare_for_groups, insert=True)
        store = cls(engine)
        try:
            with store._failures():
                store._lock.enter_context(exclusive_lock(engine))
                store._prepare()
        except ServiceError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Release the lock on the database and close all connections to it."""
        self._lock.close()
        self._engine.dispose()

    def write(self, changes: Changes) -> None:
        """Write all changes in one transaction: once this returns they outlive a power failure.

        Raises:
            ServiceError: when nothing was written.
        """
        with self._failures(), self._writing.begin() as connection:
            _write(connection, changes)

    def read(self, group_ids: Sequence[int]) -> dict[int, Fragment]:
        """The content of groups by their ids; ids that the database does not have are left out.

        Raises:
            ServiceError: when the database fails.
        """
        columns = tables.groups.columns
        query = select(columns.id, columns.deflated, columns.checksum, columns.num_bytes)
        with self._failures(), self._engine.connect() as connection:
            return {
                row.id: Fragment(row.deflated, row.checksum, row.num_bytes)
                for part in _parts(group_ids)
                for row in connection.execute(query.where(columns.id.in_(part)))
            }

    def load(self) -> StoredHub:
        """All that the database stores of a hub, without the groups' content; a fresh hub's where it stores nothing.

        Raises:
            ServiceError: when the database fails.
        """
        with self._failures(), self._engine.connect() as connection:
            return _load(connection)

    def posts(self) -> list[Post]:
        """The stored answers that may be requested again, oldest first.

        Raises:
            ServiceError: when the database fails.
        """
        with self._failures(), self._engine.connect() as connection:
            rows = connection.execute(select(tables.posts).order_by(tables.posts.columns.id))
            return [Post(**row._mapping) for row in rows]

    def _prepare(self) -> None:
        with self._writing.begin() as connection:
            tables.metadata.create_all(connection)
            found = connection.scalar(select(tables.schema.columns.version))
            if found is None:
                connection.execute(insert(tables.schema), {"version": tables.VERSION})
            elif found != tables.VERSION:
                raise ServiceError(
                    f"the hub's database at {self._where()} has tables of version {found}, this LoomRL knows "
                    f"{tables.VERSION}: use the LoomRL that made it, or another database ({URL_VARIABLE})"
                )

    def _where(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise what goes wrong with the database as `ServiceError`."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise ServiceError(
                f"the hub's database at {self._where()} failed: {cause}; check that it runs and has room, or set "
                f"{URL_VARIABLE}"
            ) from error


def _prepare_for_groups(connection: sqlite3.Connection, _: Any) -> None:
    """Groups are tens of kilobytes: a page holds most of one, and deleting one does not write zeros over it."""
    connection.execute("PRAGMA page_size=32768")
    connection.execute("PRAGMA secure_delete=OFF")


def _write(connection: Connection, changes: Changes) -> None:
    if changes.cleared:
        for table in (tables.groups, tables.batches, tables.environments, tables.posts):
            connection.execute(delete(table))
    if changes.state is not None:
        _replace(connection, tables.state, [{"id": 1, "document": _json(changes.state)}])
    environments = changes.environments.items()
    _replace(connection, tables.environments, [{"env_id": key, "document": _json(one)} for key, one in environments])
    if changes.groups:
        connection.execute(insert(tables.groups), [_row(*one) for one in changes.groups.values()])
    if changes.queued:
        query = update(tables.groups).where(tables.groups.columns.id == bindparam("group"))
        values = [{"group": one.id, "position": one.position} for one in changes.queued.values()]
        connection.execute(query.values(position=bindparam("position")), values)
    _delete(connection, tables.groups, changes.deleted_groups)
    _delete(connection, tables.batches, changes.deleted_batches)
    _replace(connection, tables.batches, [_batch_row(batch) for batch in changes.batches.values()])
    if changes.posts:
        connection.execute(insert(tables.posts), [asdict(post) for post in changes.posts])
    if changes.posts_before is not None:
        columns, (unkeyed, keyed) = tables.posts.columns, changes.posts_before
        outdated = (columns.created < keyed) | (columns.key.is_(None) & (columns.created < unkeyed))
        connection.execute(delete(tables.posts).where(outdated))


def _load(connection: Connection) -> StoredHub:
    document = connection.scalar(select(tables.state.columns.document))
    environments = connection.scalars(
        select(tables.environments.columns.document).order_by(tables.environments.columns.env_id)
    )
    groups = {row.id: TrajectoryGroup(**row._mapping) for row in connection.execute(select(*_GROUP_COLUMNS))}
    batches = [
        GroupBatch(row.id, [groups[one] for one in orjson.loads(row.group_ids)], row.leased_until)
        for row in connection.execute(select(tables.batches))
    ]
    return StoredHub(
        HubState() if document is None else HubState(**orjson.loads(document)),
        [HubEnvironment(**orjson.loads(one)) for one in environments],
        groups,
        batches,
    )


def _row(group: TrajectoryGroup, fragment: Fragment) -> dict[str, Any]:
    row = {column.name: getattr(group, column.name) for column in _GROUP_COLUMNS}
    return {**row, "checksum": fragment.checksum, "deflated": fragment.deflated}


def _batch_row(batch: GroupBatch) -> dict[str, Any]:
    ids = _json([group.id for group in batch.groups])
    return {"id": batch.id, "group_ids": ids, "leased_until": batch.leased_until}


def _replace(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Rows as they are now, whether they were there or not."""
    key = next(iter(table.primary_key.columns))
    _delete(connection, table, [row[key.name] for row in rows])
    if rows:
        connection.execute(insert(table), rows)


def _delete(connection: Connection, table: Table, keys: Iterable[int]) -> None:
    key = next(iter(table.primary_key.columns))
    for part in _parts(list(keys)):
        connection.execute(delete(table).where(key.in_(part)))


def _parts(values: Sequence[int]) -> Iterable[Sequence[int]]:
    return (values[start : start + _MAX_VALUES] for start in range(0, len(values), _MAX_VALUES))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

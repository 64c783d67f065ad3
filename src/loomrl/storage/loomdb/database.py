"""LoomDB: environments, snapshots, lineage, deployments, approvals, audit anchors, controls and events.

SQLite by default (write-ahead log, writers wait for each other), PostgreSQL by URL:
`postgresql+psycopg://user:password@host/database`. Opening migrates the schema when it must.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, Select, delete, func, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from loomrl.errors import ConfigError, ServiceError
from loomrl.storage.loomdb.engine import BUSY_SECONDS, WRITES, make_engine, unreachable
from loomrl.storage.loomdb.migrate import ensure_schema
from loomrl.storage.loomdb.models import (
    ApprovalRow,
    AuditAnchorRow,
    AuditHeadRow,
    Base,
    ControlRow,
    DeploymentRow,
    EdgeRow,
    EnvironmentRow,
    EventRow,
    MonitorEvidenceRow,
    SnapshotRow,
    now,
)
from loomrl.storage.loomdb.records import (
    Approval,
    AuditAnchor,
    AuditChain,
    AuditHead,
    Control,
    Deployment,
    EnvironmentRecord,
    Event,
    LineageEdge,
    MonitorEvidence,
    SnapshotRecord,
)
from loomrl.system.files import sha256
from loomrl.system.home import loomdb_url
from loomrl.system.schema import Document
from loomrl.types import EnvironmentSnapshot

Record = TypeVar("Record", bound=Document)
RowOf = TypeVar("RowOf", bound=Base)


class DamagedRow(ServiceError):
    """A row holds what no version of LoomRL writes: it was changed by hand. Of one that was read by itself, `number` is
    the key, and `digest` the SHA-256 of all that it holds."""

    def __init__(self, message: str, number: int = 0, digest: str = "") -> None:
        super().__init__(message)
        self.number, self.digest = number, digest


class LoomDB:
    """One database, for several threads and processes at once. What a method does is done whole or not at all. Every
    method raises `ServiceError` when the database cannot be reached, stays locked or fails, and those that look up or
    list records raise `DamagedRow`, which is a `ServiceError`, where a row was changed by hand. Those that take
    `damaged` put it there, where it is given, and leave that row out.

    After `close` a method connects again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers = sessionmaker(engine)
        self._writers = sessionmaker(engine.execution_options(**{WRITES: True}))

    @classmethod
    def open(cls, url: str | None = None, wait_seconds: int = BUSY_SECONDS) -> Self:
        """Open the database at a SQLAlchemy URL (default: `LOOMRL_DATABASE_URL`, else SQLite under the home).

        A schema that is missing or older is made or migrated first. `wait_seconds` is how long a locked file or table,
        or a server that does not answer, is waited for, see `make_engine`; migrations wait for up to two minutes.

        Raises:
            ConfigError: when the URL is not one, or its driver is not installed.
            ArtifactError: when the folder of a SQLite file cannot be made.
            ServiceError: when the database cannot be reached or read, or stays locked; when a newer LoomRL made it, or
                another process migrates it for more than two minutes.
        """
        engine = make_engine(url or loomdb_url(), wait_seconds)
        try:
            ensure_schema(engine)
        except SQLAlchemyError as error:
            engine.dispose()
            raise unreachable(engine, error) from error
        except ServiceError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close all connections that are not in use; a database in memory is lost then."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- environments ---------------------------------------------------------------------------------------------

    def register_environment(self, record: EnvironmentRecord, source: bytes) -> EnvironmentRecord:
        """Register an environment with its source archive; returns what is registered.

        Registering equal content again changes nothing and returns the former record: `created` and `path` may differ.

        Raises:
            ConfigError: when this version is registered with other content, which stays.
            DamagedRow: when what is registered was changed by hand.
        """

        def registered(session: Session, sequence: int) -> EnvironmentRecord:
            existing = _got(session, EnvironmentRow, (record.name, record.version), EnvironmentRecord)
            if existing is not None:
                return existing[1]
            session.add(EnvironmentRow(**record.model_dump(), sequence=sequence, source=source))
            return record

        found = self._numbered(select(func.max(EnvironmentRow.sequence)), registered)
        _refuse_other_content(record, found)
        return found

    def unregister_environment(self, name: str, version: str) -> EnvironmentRecord:
        """Remove a registration of which there is no snapshot, with its source archive; returns what was registered.

        Raises:
            ConfigError: when it is not registered, or snapshots of it are on record.
            DamagedRow: when what is registered was changed by hand.
        """
        with self._writing() as session:
            registered = _got(session, EnvironmentRow, (name, version), EnvironmentRecord)
            if registered is None:
                raise ConfigError(f"environment {name!r} version {version!r} is not registered; see `loomrl env list`")
            taken = select(SnapshotRow.digest).where(SnapshotRow.name == name, SnapshotRow.version == version)
            if digests := session.scalars(taken.order_by(SnapshotRow.created)).all():
                raise ConfigError(
                    f"environment {name!r} version {version!r} stays registered: {len(digests)} snapshots were taken "
                    f"of it (first: {digests[0][:12]}), and policies may be made from them; register another version"
                )
            row, found = registered
            session.delete(row)
            return found

    def find_environment(self, name: str, version: str | None = None) -> EnvironmentRecord | None:
        """A registered environment, without `version` the one registered last; None where there is none."""
        query = select(EnvironmentRow).where(EnvironmentRow.name == name).order_by(EnvironmentRow.sequence.desc())
        if version is not None:
            query = query.where(EnvironmentRow.version == version)
        return self._first(query, EnvironmentRecord)

    def list_environments(self) -> list[EnvironmentRecord]:
        """All registered environments, in the order of their registration."""
        return self._all(select(EnvironmentRow).order_by(EnvironmentRow.sequence), EnvironmentRecord)

    def environment_source(self, name: str, version: str) -> bytes:
        """The source archive of a registered environment, byte for byte as it was registered.

        Raises:
            ConfigError: when it is not registered.
        """
        query = select(EnvironmentRow.source).where(EnvironmentRow.name == name, EnvironmentRow.version == version)
        with self._reading() as session:
            source = session.scalar(query)
        if source is None:
            raise ConfigError(f"environment {name!r} version {version!r} is not registered; see `loomrl env list`")
        return bytes(source)

    # --- snapshots ------------------------------------------------------------------------------------------------

    def record_snapshot(self, snapshot: EnvironmentSnapshot) -> None:
        """Record a snapshot; the same one again changes nothing."""
        spec = snapshot.spec
        fields = {"name": spec.name, "version": spec.version, "document": snapshot.to_json(), "created": now()}
        self._insert_once(SnapshotRow, {"digest": snapshot.digest}, fields)

    def get_snapshot(self, digest: str) -> EnvironmentSnapshot | None:
        """A snapshot's document by its whole digest; None where none of that digest is on record.

        Raises:
            DamagedRow: when the document in LoomDB was changed by hand so that it is none.
        """
        with self._reading() as session, _undamaged(EnvironmentSnapshot):
            row = session.get(SnapshotRow, digest)
            return None if row is None else EnvironmentSnapshot.model_validate(row.document)

    def list_snapshots(self, name: str | None = None) -> list[SnapshotRecord]:
        """All snapshots, newest first, of one environment if named; empty where there are none."""
        query = select(SnapshotRow).order_by(SnapshotRow.created.desc(), SnapshotRow.digest)
        return self._all(query if name is None else query.where(SnapshotRow.name == name), SnapshotRecord)

    # --- lineage --------------------------------------------------------------------------------------------------

    def link(self, subject: str, predicate: str, object: str) -> None:  # noqa: A002
        """State an edge; stating it again changes nothing.

        Raises:
            ConfigError: when a node is not written `kind:id`.
        """
        for node in (subject, object):
            kind, colon, identity = node.partition(":")
            if not (kind and colon and identity):
                raise ConfigError(f"lineage node {node!r} must be written kind:id, for example policy:cartpole@3")
        edge = {"subject": subject, "predicate": predicate, "object": object}
        self._insert_once(EdgeRow, edge, {"created": now()})

    def edges(self, node: str) -> list[LineageEdge]:
        """Edges at a node, `kind:id`: where it is the subject or the object; oldest first, empty for an unknown
        node."""
        is_at = (EdgeRow.subject == node) | (EdgeRow.object == node)
        return self._all(select(EdgeRow).where(is_at).order_by(EdgeRow.id), LineageEdge)

    # --- deployments and approvals --------------------------------------------------------------------------------

    def record_deployment(self, policy: str, version: str, role: str, run_id: str | None, reason: str) -> Deployment:
        """Append that a version took a role now, also where it has that role; returns the new row."""
        row = DeploymentRow(policy=policy, version=version, role=role, run_id=run_id, reason=reason, created=now())
        return self._insert(row, Deployment)

    def deployments(self, policy: str | None = None) -> list[Deployment]:
        """Deployments, newest first, of one policy if named; empty where there are none."""
        query = select(DeploymentRow).order_by(DeploymentRow.id.desc())
        return self._all(query if policy is None else query.where(DeploymentRow.policy == policy), Deployment)

    def request_approval(self, run_id: str, policy: str, version: str) -> Approval:
        """Ask for a person's decision; asking again returns what there is, decided or not.

        Raises:
            ConfigError: when the run asks for the approval of another policy or version already.
        """
        fields = {"policy": policy, "version": version, "requested": now()}
        self._insert_once(ApprovalRow, {"run_id": run_id}, fields)
        found = self.approval(run_id)
        if found is None or (found.policy, found.version) != (policy, version):
            raise ConfigError(f"run {run_id!r} already asks for the approval of another version: {found}")
        return found

    def decide_approval(self, run_id: str, approved: bool, person: str, reason: str = "") -> Approval:
        """Record a person's decision, which is final; returns the decided approval.

        Raises:
            ConfigError: when nobody asked, it was decided already, or `person` is empty; nothing is recorded then.
        """
        if not person.strip():
            raise ConfigError("a decision needs the name of the person who takes it")
        with self._writing() as session:
            asked = _got(session, ApprovalRow, run_id, Approval, with_for_update=True)
            if asked is None:
                waiting = select(ApprovalRow.run_id).where(ApprovalRow.approved.is_(None))
                known = ", ".join(session.scalars(waiting)) or "none"
                raise ConfigError(f"run {run_id!r} does not wait for approval; waiting: {known}")
            row, _ = asked
            if row.approved is not None:
                word = "approved" if row.approved else "rejected"
                raise ConfigError(f"run {run_id!r} was {word} by {row.person} already; a decision is final")
            row.approved, row.person, row.reason, row.decided = approved, person.strip(), reason, now()
            session.flush()
            return _record(Approval, row)

    def approval(self, run_id: str) -> Approval | None:
        """The approval that a run asked for, decided or not; None where it asked for none, or there is no such run."""
        return self._first(select(ApprovalRow).where(ApprovalRow.run_id == run_id), Approval)

    # --- controls -------------------------------------------------------------------------------------------------

    def add_control(self, control: Control) -> bool:
        """Add a revision of a control; False, and nothing is added, where another host has taken its number already."""
        try:
            with self._writing() as session:
                session.add(ControlRow(**control.model_dump(exclude={"made_from"})))
        except IntegrityError:
            return False
        return True

    def controls(self, policy: str, last: int = 1) -> list[Control]:
        """Of each of a policy's controls the revisions with its `last` highest numbers, lifted ones too.

        They are sorted by name, then oldest first; empty where nothing was ever set.
        """
        newest = (
            select(ControlRow.name, func.max(ControlRow.revision).label("revision"))
            .where(ControlRow.policy == policy)
            .group_by(ControlRow.name)
            .subquery()
        )
        query = (
            select(ControlRow)
            .join(newest, ControlRow.name == newest.c.name)
            .where(ControlRow.policy == policy, ControlRow.revision > newest.c.revision - last)
            .order_by(ControlRow.name, ControlRow.revision)
        )
        return self._all(query, Control)

    def control_revisions(self, policy: str, name: str, after: int) -> list[Control]:
        """The revisions of one control above the number `after`, oldest first; empty where there are none."""
        is_of = (ControlRow.policy == policy, ControlRow.name == name, ControlRow.revision > after)
        return self._all(select(ControlRow).where(*is_of).order_by(ControlRow.revision), Control)

    def num_controls(self, policy: str) -> int:
        """How many revisions of a policy's controls there are: as long as it stays, nothing was changed."""
        with self._reading() as session:
            return session.scalar(select(func.count()).where(ControlRow.policy == policy)) or 0

    # --- what monitors gathered -----------------------------------------------------------------------------------

    def share_evidence(
        self, policy: str, version: str, server: str, document: Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
    ) -> MonitorEvidence:
        """Keep what a server's monitors have gathered about a version, in place of what it shared before; returns it.

        `document(revision, former)` makes the new document. `revision` is the one it will have: one more than all
        before it of the policy, so that what is shared stands in one order for all who read it. `former` is the
        document it replaces, empty if there is none. It is called again where another server took the revision
        meanwhile.
        """
        key = {"policy": policy, "version": version, "server": server}

        def shared(session: Session, revision: int) -> MonitorEvidence:
            number = self._server_number(session, policy, server)
            former = _got(session, MonitorEvidenceRow, key, MonitorEvidence)
            fields = {
                "number": number,
                "revision": revision,
                "document": dict(document(revision, {} if former is None else former[1].document)),
                "created": now(),
            }
            row = session.merge(MonitorEvidenceRow(**key, **fields))
            session.flush()
            return _record(MonitorEvidence, row)

        newest = select(func.max(MonitorEvidenceRow.revision)).where(MonitorEvidenceRow.policy == policy)
        return self._numbered(newest, shared)

    def evidence_revision(self, policy: str) -> tuple[int, int]:
        """(newest revision, number of documents) of a policy, (0, 0) without any: while both stay, nothing was
        changed."""
        rows = MonitorEvidenceRow
        with self._reading() as session:
            newest, count = session.execute(
                select(func.max(rows.revision), func.count()).where(rows.policy == policy)
            ).one()
        return newest or 0, count

    def shared_evidence(self, policy: str) -> list[MonitorEvidence]:
        """What all servers have shared about a policy's versions, one record for each server and version.

        They are sorted by the servers' numbers, then by version; empty where nothing was shared.
        """
        rows = MonitorEvidenceRow
        query = select(rows).where(rows.policy == policy).order_by(rows.number, rows.version)
        return self._all(query, MonitorEvidence)

    def forget_evidence(self, policy: str, version: str) -> None:
        """Remove what all servers have shared about a version, so that its evidence begins anew; nothing where there is
        none."""
        rows = MonitorEvidenceRow
        with self._writing() as session:
            session.execute(delete(rows).where(rows.policy == policy, rows.version == version))

    def _server_number(self, session: Session, policy: str, server: str) -> int:
        rows = MonitorEvidenceRow
        known = select(rows.number).where(rows.policy == policy, rows.server == server).limit(1)
        number = session.scalar(known)
        return number or (session.scalar(select(func.max(rows.number)).where(rows.policy == policy)) or 0) + 1

    # --- audit anchors and events ---------------------------------------------------------------------------------

    def append_audit_anchor(self, build: Callable[[int, str], AuditAnchor]) -> AuditAnchor:
        """Append the statement that `build(number, digest of the statement before)` returns; returns it.

        The first has the number 1, and 64 zeros for the digest before it. `build` is called again, with the next
        number, where another process was faster.
        """

        def appended(session: Session, number: int) -> AuditAnchor:
            with _undamaged(AuditAnchor):
                last = session.scalars(select(AuditAnchorRow).where(AuditAnchorRow.number == number - 1)).first()
                anchor = build(number, "0" * 64 if last is None else last.digest)
            session.add(AuditAnchorRow(**anchor.model_dump()))
            return anchor

        return self._numbered(select(func.max(AuditAnchorRow.number)), appended)

    def audit_anchors(
        self, after: int = 0, limit: int | None = None, damaged: list[DamagedRow] | None = None
    ) -> list[AuditAnchor]:
        """Statements about audit chains with a number above `after`, oldest first: `limit` of them, or all for None."""
        query = select(AuditAnchorRow).where(AuditAnchorRow.number > after).order_by(AuditAnchorRow.number)
        return self._all(query.limit(limit), AuditAnchor, damaged)

    def newest_audit_anchor(self, server: str | None = None, kind: str | None = None) -> AuditAnchor | None:
        """The last statement, about one chain or of one kind where they are given; None where there is none."""
        query = select(AuditAnchorRow).order_by(AuditAnchorRow.number.desc())
        if server is not None:
            query = query.where(AuditAnchorRow.server == server)
        if kind is not None:
            query = query.where(AuditAnchorRow.kind == kind)
        return self._first(query, AuditAnchor)

    def audit_chains(self, policy: str | None = None) -> list[AuditChain]:
        """Every chain whose head was ever anchored, of one policy if named, those known longest first.

        Raises:
            DamagedRow: when a statement was changed by hand so that it cannot be read.
        """
        found = {head.server: _chain_of(head) for head in self.audit_heads()}
        ends = select(func.max(AuditAnchorRow.number)).where(AuditAnchorRow.kind == "head")
        newest = select(AuditAnchorRow).where(AuditAnchorRow.number.in_(ends.group_by(AuditAnchorRow.server)))
        for anchor in self._all(newest.order_by(AuditAnchorRow.number), AuditAnchor):
            with _undamaged(AuditChain):
                told = json.loads(anchor.payload)
                place = {name: told[name] for name in ("server", "host", "segment", "sequence", "digest")}
                found[anchor.server] = AuditChain(**place, anchored=datetime.fromisoformat(told["time"]))
        return [chain for chain in found.values() if policy in (None, chain.server.partition("/")[0])]

    def audit_heads(self, server: str | None = None, damaged: list[DamagedRow] | None = None) -> list[AuditHead]:
        """Heads that were kept before there were anchors, oldest first, of one chain (`POLICY/CHAIN`) if named."""
        query = select(AuditHeadRow).order_by(AuditHeadRow.id)
        return self._all(query if server is None else query.where(AuditHeadRow.server == server), AuditHead, damaged)

    def record_event(self, kind: str, data: Mapping[str, Any]) -> Event:
        """Append an event of this kind, with this JSON data and the time now; returns it as it was stored."""
        return self._insert(EventRow(kind=kind, data=dict(data), created=now()), Event)

    def add_event(self, kind: str, data: Mapping[str, Any], place: str) -> bool:
        """Append an event under `place`, a text that only one event can have; False, and nothing, where one has it
        already."""
        try:
            with self._writing() as session:
                session.add(EventRow(kind=kind, data=dict(data), place=place, created=now()))
        except IntegrityError:
            return False
        return True

    def latest_event(self, kind: str) -> Event | None:
        """The newest event of a kind; None where there is none."""
        return self._first(select(EventRow).where(EventRow.kind == kind).order_by(EventRow.id.desc()), Event)

    def events(self, kind: str | None = None, damaged: list[DamagedRow] | None = None) -> list[Event]:
        """All events, oldest first, of one kind if named; empty where there are none."""
        query = select(EventRow).order_by(EventRow.id)
        return self._all(query if kind is None else query.where(EventRow.kind == kind), Event, damaged)

    def newest_events(self, policy: str, kinds: Sequence[str], limit: int | None = None) -> list[Event]:
        """The newest events of these kinds whose data name a policy, newest first: `limit` of them, or all for None."""
        is_about = EventRow.data["policy"].as_string() == policy
        query = select(EventRow).where(EventRow.kind.in_(kinds), is_about).order_by(EventRow.id.desc()).limit(limit)
        return self._all(query, Event)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[Session]:
        return self._transaction(self._readers)

    def _writing(self) -> AbstractContextManager[Session]:
        return self._transaction(self._writers)

    def _numbered(self, newest: Select[Any], write: Callable[[Session, int], Record]) -> Record:
        """Write a row whose number is one more than the newest one, again where another process was faster."""
        last = None
        while True:
            before = last
            try:
                with self._writing() as session:
                    with _undamaged(int):
                        last = int(session.scalar(newest) or 0)
                    return write(session, last + 1)
            except IntegrityError as error:
                if last == before:  # so it was nobody else's number that stood in the way
                    raise self._takes_no_row(f" after number {last}", error) from error

    def _takes_no_row(self, which: str, error: IntegrityError) -> ServiceError:
        return ServiceError(
            f"LoomDB at {self._engine.url.render_as_string()} takes no row{which}: {error.orig}; its tables were "
            "changed, restore it from a backup"
        )

    @contextmanager
    def _transaction(self, sessions: sessionmaker[Session]) -> Iterator[Session]:
        try:
            with sessions.begin() as session:
                yield session
        except IntegrityError:
            raise
        except PoolTimeout as error:
            raise ServiceError(
                f"LoomDB at {self._engine.url.render_as_string()}: no connection came free ({error}); fewer threads of "
                "this process may ask at once"
            ) from error
        except DBAPIError as error:
            raise unreachable(self._engine, error) from error
        except OverflowError as error:  # the number after the greatest
            raise DamagedRow(f"a row of LoomDB holds a number that none can follow, it was changed: {error}") from error

    def _all(self, query: Select[Any], kind: type[Record], damaged: list[DamagedRow] | None = None) -> list[Record]:
        with self._reading() as session:
            try:
                with _undamaged(kind):
                    return [_record(kind, row) for row in session.scalars(query)]
            except DamagedRow:
                if damaged is None:
                    raise
            return list(_one_by_one(session, query, kind, damaged))

    def _first(self, query: Select[Any], kind: type[Record]) -> Record | None:
        return next(iter(self._all(query.limit(1), kind)), None)

    def _insert(self, row: Base, kind: type[Record]) -> Record:
        try:
            with self._writing() as session:
                session.add(row)
                session.flush()
                return _record(kind, row)
        except IntegrityError as error:  # such rows have no key of their own
            raise self._takes_no_row(f" in {row.__tablename__}", error) from error

    def _insert_once(self, rows: type[Base], key: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Insert, unless a row with this key is there already."""
        try:
            with self._writing() as session:
                session.add(rows(**key, **fields))
        except IntegrityError as error:
            with self._reading() as session:
                if session.scalars(select(rows).filter_by(**key)).first() is None:
                    raise self._takes_no_row(f" in {rows.__tablename__}", error) from error


@contextmanager
def _undamaged(kind: type) -> Iterator[None]:
    """What is read in the block from a row is of this kind, or was changed by hand."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedRow(f"a row of LoomDB is no {kind.__name__}, it was changed: {error}") from error


def _got(
    session: Session, rows: type[RowOf], key: Any, kind: type[Record], **options: Any
) -> tuple[RowOf, Record] | None:
    """The row of a key and the record in it; None where there is none."""
    with _undamaged(kind):
        row = session.get(rows, key, **options)
        return None if row is None else (row, _record(kind, row))


def _one_by_one(
    session: Session, query: Select[Any], kind: type[Record], damaged: list[DamagedRow]
) -> Iterator[Record]:
    """The records of a query over one table with a number for its key, each row read by itself."""
    rows = query.column_descriptions[0]["entity"]
    key, table = inspect(rows).primary_key[0], rows.__tablename__
    for number in session.scalars(query.with_only_columns(key)).all():
        try:
            found = _got(session, rows, number, kind)
        except DamagedRow:
            held = session.execute(text(f"SELECT * FROM {table} WHERE {key.name} = :number"), {"number": number})
            what = f"row {number} of the table {table} in LoomDB cannot be read, it was changed"
            digest = sha256(repr([*map(tuple, held)]).encode())
            damaged.append(DamagedRow(f"{what}; restore it from a backup", number, digest))
        else:
            if found is not None:
                yield found[1]


def _record(kind: type[Record], row: Base) -> Record:
    return kind.model_validate({name: getattr(row, name) for name in kind.model_fields if hasattr(row, name)})


def _chain_of(head: AuditHead) -> AuditChain:
    place = {"server": head.server, "segment": head.segment, "sequence": head.sequence, "digest": head.digest}
    return AuditChain(**place, host=None, anchored=head.created)


def _refuse_other_content(wanted: EnvironmentRecord, found: EnvironmentRecord) -> None:
    immutable = EnvironmentRecord.model_fields.keys() - {"created", "path"}
    changed = sorted(name for name in immutable if getattr(wanted, name) != getattr(found, name))
    if changed:
        raise ConfigError(
            f"environment {wanted.name!r} version {wanted.version!r} is registered already, with another "
            f"{', '.join(changed)}; a version is immutable: register the change under a new version"
        )

"""LoomDB's tables."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Float, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

# The newest migration. Opening compares one string with it, and needs alembic only where they differ.
HEAD = "0007"


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC, with its zone also where the database keeps none (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """What is stored of a time with a zone: the same moment in UTC; None stays None."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - as above
        """What is read of a stored time: that moment in UTC, with the zone set also where the database has none."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """The declarative base that all tables of LoomDB derive from."""


class Created:
    """Rows that keep when they were made."""

    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class Numbered:
    """Rows with a number of their own, `id`: higher for those that came later."""

    id: Mapped[int] = mapped_column(primary_key=True)


class EnvironmentRow(Created, Base):
    """A registered environment; (name, version) is immutable, its source included."""

    __tablename__ = "environments"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    sequence: Mapped[int] = mapped_column(Integer, unique=True)
    entry_point: Mapped[str] = mapped_column(Text)
    kwargs: Mapped[dict[str, Any]] = mapped_column(JSON)
    max_episode_steps: Mapped[int | None]
    reward_threshold: Mapped[float | None] = mapped_column(Float)
    source_digest: Mapped[str] = mapped_column(String(64))
    source_roots: Mapped[list[str]] = mapped_column(JSON)
    source: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    path: Mapped[str | None] = mapped_column(Text)


class SnapshotRow(Created, Base):
    """A snapshot's document; its files lie in the home folder or in DVC."""

    __tablename__ = "snapshots"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), index=True)
    version: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)


class EdgeRow(Numbered, Created, Base):
    """One statement of the lineage graph: subject - predicate - object, nodes written `kind:id`."""

    __tablename__ = "edges"
    __table_args__ = (UniqueConstraint("subject", "predicate", "object"), Index("ix_edges_object", "object"))

    subject: Mapped[str] = mapped_column(String(512))
    predicate: Mapped[str] = mapped_column(String(128))
    object: Mapped[str] = mapped_column(String(512))


class DeploymentRow(Numbered, Created, Base):
    """A row for each time that a version took a role."""

    __tablename__ = "deployments"

    policy: Mapped[str] = mapped_column(String(255), index=True)
    version: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(64))
    run_id: Mapped[str | None] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)


class ApprovalRow(Base):
    """A run that a person must decide on."""

    __tablename__ = "approvals"

    run_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    policy: Mapped[str] = mapped_column(String(255))
    version: Mapped[str] = mapped_column(String(64))
    requested: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    approved: Mapped[bool | None]
    person: Mapped[str | None] = mapped_column(String(255))
    reason: Mapped[str | None] = mapped_column(Text)
    decided: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AuditHeadRow(Numbered, Created, Base):
    """The head of a server's audit chain, as it was kept before there were anchors; nothing is added."""

    __tablename__ = "audit_heads"
    __table_args__ = (UniqueConstraint("server", "segment", "sequence"),)

    server: Mapped[str] = mapped_column(String(255))
    segment: Mapped[str] = mapped_column(String(255))
    sequence: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    signature: Mapped[str | None] = mapped_column(String(128))
    keyid: Mapped[str | None] = mapped_column(String(64))


class AuditAnchorRow(Base):
    """One statement about audit chains, numbered and linked to the one before it (see
    `loomrl.storage.audit.anchors`).
    """

    __tablename__ = "audit_anchors"
    __table_args__ = (Index("ix_audit_anchors_server", "server", "kind", "number"),)

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    server: Mapped[str] = mapped_column(String(255))
    kind: Mapped[str] = mapped_column(String(32))
    payload: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))
    signature: Mapped[str | None] = mapped_column(String(128))
    keyid: Mapped[str | None] = mapped_column(String(64))


class ControlRow(Numbered, Created, Base):
    """One change of what people have set for a policy's servers; the newest revision of a name is in force."""

    __tablename__ = "controls"
    __table_args__ = (UniqueConstraint("policy", "name", "revision"),)

    policy: Mapped[str] = mapped_column(String(255))
    name: Mapped[str] = mapped_column(String(255))
    revision: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    actor: Mapped[str] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(Text)
    replaces: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))


class MonitorEvidenceRow(Base):
    """What one server's monitors have gathered about one version; replaced as a whole."""

    __tablename__ = "monitor_evidence"
    __table_args__ = (UniqueConstraint("policy", "revision"),)

    policy: Mapped[str] = mapped_column(String(255), primary_key=True)
    version: Mapped[str] = mapped_column(String(1_000), primary_key=True)
    server: Mapped[str] = mapped_column(String(255), primary_key=True)
    number: Mapped[int] = mapped_column(Integer)  # of the server among those of the policy, from 1 on
    revision: Mapped[int] = mapped_column(BigInteger)  # of all rows of the policy; each change has the next one
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    created: Mapped[datetime] = mapped_column(UtcDateTime, default=now)  # this content


class EventRow(Numbered, Created, Base):
    """A row for each event: its kind, its JSON data and its time; `place` is unique where it is not null."""

    __tablename__ = "events"

    kind: Mapped[str] = mapped_column(String(128), index=True)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    place: Mapped[str | None] = mapped_column(String(512), index=True, unique=True)  # that only one event takes

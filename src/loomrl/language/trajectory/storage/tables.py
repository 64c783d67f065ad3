"""The hub's tables. They are its own, not LoomDB's: they hold gigabytes that come and go (ADR 24)."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

VERSION = 1  # of the tables; grows with every change to them

metadata = MetaData()
_BigId = BigInteger().with_variant(Integer, "sqlite")

schema = Table("hub_schema", metadata, Column("version", Integer, primary_key=True))

state = Table("hub_state", metadata, Column("id", Integer, primary_key=True), Column("document", Text, nullable=False))

environments = Table(
    "hub_environments",
    metadata,
    Column("env_id", Integer, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
)

groups = Table(
    "hub_groups",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=False),
    Column("size", Integer, nullable=False),
    Column("env_id", BigInteger),
    Column("num_bytes", BigInteger, nullable=False),
    Column("position", BigInteger),  # in the queue; null while it is buffered
    Column("policy_version", BigInteger),
    Column("received_step", BigInteger, nullable=False),
    Column("queued_at", Float, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("deflated", LargeBinary, nullable=False),
)

batches = Table(
    "hub_batches",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=False),
    Column("group_ids", Text, nullable=False),  # in the batch's order
    Column("leased_until", Float),
)

posts = Table(
    "hub_posts",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=False),
    Column("path", String(32), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("key", String(255)),
    Column("answer", LargeBinary, nullable=False),
    Column("created", Float, nullable=False),
    Index("ix_hub_posts_created", "created"),
)

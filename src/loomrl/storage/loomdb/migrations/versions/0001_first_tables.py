"""First tables: environments, snapshots, edges, deployments, approvals, audit heads, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the first tables and their indices."""
    op.create_table(
        "environments",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("entry_point", sa.Text, nullable=False),
        sa.Column("kwargs", sa.JSON, nullable=False),
        sa.Column("max_episode_steps", sa.Integer),
        sa.Column("reward_threshold", sa.Float),
        sa.Column("source_digest", sa.String(64), nullable=False),
        sa.Column("source_roots", sa.JSON, nullable=False),
        sa.Column("source", sa.LargeBinary, nullable=False),
        sa.Column("path", sa.Text),
        sa.Column("created", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
        sa.UniqueConstraint("sequence"),
    )
    op.create_table(
        "snapshots",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created", _TIME, nullable=False),
    )
    op.create_index("ix_snapshots_name", "snapshots", ["name"])
    op.create_table(
        "edges",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("predicate", sa.String(128), nullable=False),
        sa.Column("object", sa.String(512), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.UniqueConstraint("subject", "predicate", "object"),
    )
    op.create_index("ix_edges_object", "edges", ["object"])
    _create_decisions()
    _create_traces()


def _create_decisions() -> None:
    op.create_table(
        "deployments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("policy", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("role", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(128)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created", _TIME, nullable=False),
    )
    op.create_index("ix_deployments_policy", "deployments", ["policy"])
    op.create_table(
        "approvals",
        sa.Column("run_id", sa.String(128), primary_key=True),
        sa.Column("policy", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("requested", _TIME, nullable=False),
        sa.Column("approved", sa.Boolean),
        sa.Column("person", sa.String(255)),
        sa.Column("reason", sa.Text),
        sa.Column("decided", _TIME),
    )


def _create_traces() -> None:
    op.create_table(
        "audit_heads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("segment", sa.String(255), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.UniqueConstraint("server", "segment", "sequence"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(128), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("created", _TIME, nullable=False),
    )
    op.create_index("ix_events_kind", "events", ["kind"])


def downgrade() -> None:
    """Drop the first tables with all their rows."""
    for table in ("events", "audit_heads", "approvals", "deployments", "edges", "snapshots", "environments"):
        op.drop_table(table)

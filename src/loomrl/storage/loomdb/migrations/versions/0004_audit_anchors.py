"""Statements about audit chains: which there are, their heads, what was removed; numbered, linked and signed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table `audit_anchors`; heads from before stay in `audit_heads`."""
    op.create_table(
        "audit_anchors",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("signature", sa.String(128)),
        sa.Column("keyid", sa.String(64)),
    )
    op.create_index("ix_audit_anchors_server", "audit_anchors", ["server", "kind", "number"])


def downgrade() -> None:
    """Drop the table `audit_anchors` with its rows."""
    op.drop_table("audit_anchors")

"""What each server's monitors have gathered, so that all servers of a policy judge by all of it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table `monitor_evidence`: one row for each server and version, replaced by an update."""
    op.create_table(
        "monitor_evidence",
        sa.Column("policy", sa.String(255), primary_key=True),
        sa.Column("version", sa.String(1_000), primary_key=True),
        sa.Column("server", sa.String(255), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("policy", "revision"),
    )


def downgrade() -> None:
    """Drop the table `monitor_evidence` with its rows."""
    op.drop_table("monitor_evidence")

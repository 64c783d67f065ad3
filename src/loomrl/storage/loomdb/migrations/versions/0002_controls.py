"""What people set for a policy's servers, so that all hosts agree on it: overrides, the plan, the kill switch."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table `controls`, without rows."""
    op.create_table(
        "controls",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("policy", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("document", sa.JSON),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("policy", "name", "revision"),
    )


def downgrade() -> None:
    """Drop the table `controls` with its rows."""
    op.drop_table("controls")

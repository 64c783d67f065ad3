"""Audit heads may be signed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns `signature` and `keyid` to `audit_heads`; both are null in heads from before."""
    op.add_column("audit_heads", sa.Column("signature", sa.String(128)))
    op.add_column("audit_heads", sa.Column("keyid", sa.String(64)))


def downgrade() -> None:
    """Drop `signature` and `keyid` from `audit_heads`."""
    with op.batch_alter_table("audit_heads") as table:
        table.drop_column("keyid")
        table.drop_column("signature")

"""Which orders each order was set with knowledge of: numbers alone do not tell, LoomDB may give them later."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column `replaces` to `controls`; it is null in orders from before, whose numbers decide."""
    op.add_column("controls", sa.Column("replaces", sa.JSON, nullable=True))


def downgrade() -> None:
    """Drop the column `replaces` from `controls`."""
    op.drop_column("controls", "replaces")

"""An event may take a place that no other has, so that of two hosts that continue one chain at once only one does."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column `place` to `events`, unique where it is not null; events from before have none."""
    op.add_column("events", sa.Column("place", sa.String(512), nullable=True))
    op.create_index("ix_events_place", "events", ["place"], unique=True)


def downgrade() -> None:
    """Drop the column `place` from `events`."""
    op.drop_index("ix_events_place", "events")
    op.drop_column("events", "place")

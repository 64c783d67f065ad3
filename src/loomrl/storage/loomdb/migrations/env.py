"""Run by alembic: applies the migrations on the connection LoomDB hands over."""

from alembic import context

from loomrl.storage.loomdb.models import Base


def migrate() -> None:
    """Apply what is missing, in one transaction where the database can."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


migrate()

"""Run by alembic: applies the migrations on the connection LoomDB hands over."""

from alembic import context

from loomrl.storage.loomdb.models import Base


def migrate() -> None:
    """Apply the migrations that alembic asks for on LoomDB's connection; SQLAlchemy's errors pass through.

    They are one transaction, so that none is left half done, where the database can undo changes of tables.
    """
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


migrate()

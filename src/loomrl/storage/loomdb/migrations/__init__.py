"""Alembic's migrations, shipped with the package."""

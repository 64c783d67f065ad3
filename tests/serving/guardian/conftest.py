"""A PostgreSQL server, for what servers share."""

from databases import postgresql_server, postgresql_url

__all__ = ["postgresql_server", "postgresql_url"]

"""A PostgreSQL server, for what servers share."""

from tests.support.databases import postgresql_server, postgresql_url

__all__ = ["postgresql_server", "postgresql_url"]

"""Every test of LoomDB runs on both kinds of databases."""

from tests.support.databases import database_url, postgresql_server, postgresql_url

__all__ = ["database_url", "postgresql_server", "postgresql_url"]

"""Where a database lies that is a file of SQLite."""

from pathlib import Path

from sqlalchemy.engine import URL, make_url


def file_of(url: str | URL) -> Path | None:
    """The file of a SQLite URL; None for any other URL or path, and for a database in memory."""
    if isinstance(url, str) and not url.startswith("sqlite"):
        return None
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database))

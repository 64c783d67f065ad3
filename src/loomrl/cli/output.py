"""How commands show what they found: a table for people, one document for programs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> "Table":
    """A table of texts as they are, for rich's console; long ones go on in the next line of their cell."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table of texts on standard output; long ones go on in the next line of their cell."""
    from loomrl.system.terminal import PlainConsole

    PlainConsole().print(table_of(columns, rows, title))

"""How commands show what they found: a table for people, one document for programs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from loomrl.safety.replay import CounterexampleReplay

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


def print_json(document: Any) -> None:
    """Print one JSON document, with sorted keys."""
    import json

    typer.echo(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))


def print_replayed(outcome: "CounterexampleReplay", as_json: bool) -> None:
    """Print what came of a counterexample that was played again.

    Raises:
        ArtifactError: when the failure did not come back.
    """
    from loomrl.errors import ArtifactError

    if as_json:
        print_json(outcome.to_json())
    else:
        typer.echo(f"{outcome.claim}: {outcome.finding}")
        if outcome.identical is not None:
            typer.echo(f"the episode is {'identical to' if outcome.identical else 'different from'} the recorded one")
    if not outcome.reproduced:
        raise ArtifactError(f"the counterexample of {outcome.claim} did not fail again: {outcome.finding}")

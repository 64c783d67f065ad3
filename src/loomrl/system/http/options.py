"""What `loomrl hub serve` and `loomrl engine serve` have in common: options, and how both begin."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from loomrl.system.lifetime import die_with_parent

GRACE_SECONDS = 10.0  # to end well once the parent is gone

Host = Annotated[str, typer.Option(help="Others can reach it only with tokens configured.")]
Port = Annotated[int, typer.Option(help="0 takes a free one.")]
MaxBodyMib = Annotated[int, typer.Option(min=1, help="Of one request, unpacked.")]
DieWithParent = Annotated[
    int | None, typer.Option(metavar="PID", hidden=True, help="End when this parent process is gone.")
]
PortFile = Annotated[Path | None, typer.Option(help="Gets the URL and process id once bound.")]


def begin(parent: int | None) -> None:
    """Log to stderr, and end with the process that started this one, where it is named."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if parent is not None:
        die_with_parent(parent=parent, grace_seconds=GRACE_SECONDS)

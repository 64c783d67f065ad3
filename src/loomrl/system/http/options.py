"""What the commands that serve have in common: options, those that settings name, and how they begin and end."""

import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import typer

from loomrl.errors import LoomRLError
from loomrl.system.lifetime import die_with_parent

F = TypeVar("F", bound=Callable[..., Any])
GRACE_SECONDS = 10.0  # to end well once the parent is gone

Host = Annotated[str, typer.Option(help="Others can reach it only with tokens configured.")]
Port = Annotated[int, typer.Option(help="0 takes a free one.")]
MaxBodyMib = Annotated[int, typer.Option(min=1, help="Of one request, unpacked.")]
DieWithParent = Annotated[
    int | None, typer.Option(metavar="PID", hidden=True, help="End when this parent process is gone.")
]
PortFile = Annotated[Path | None, typer.Option(help="Gets the URL and process id once bound.")]


def with_settings(kind: type[Any]) -> Callable[[F], F]:
    """A decorator: a command that ends with `**settings` gets, as options of its own, the fields of the class `kind`
    that are annotated as options."""

    def add(command: F) -> F:
        own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
        fields = [one for one in inspect.signature(kind).parameters.values() if get_origin(one.annotation) is Annotated]
        ordered = sorted([*fields, *own], key=lambda one: one.default is not one.empty)  # those without default first
        command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # which typer reads
        return command

    return add


def begin(parent: int | None, grace_seconds: float = GRACE_SECONDS) -> None:
    """Begin a command that serves: log to stderr, and end with the process that started this one, where `parent` names
    it.

    When that is gone this process gets SIGTERM, and `grace_seconds` to end well.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if parent is not None:
        die_with_parent(parent=parent, grace_seconds=grace_seconds)


def run_as_module(app: typer.Typer, name: str, module: str) -> None:
    """Run a command line as `python -m MODULE`; does not return: it ends the process with `SystemExit`.

    A `LoomRLError` ends it with its exit code, and its message on stderr instead of a traceback.
    """
    try:
        app(prog_name=f"python -m {module}")
    except LoomRLError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

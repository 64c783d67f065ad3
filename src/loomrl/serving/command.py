"""`loomrl serve`: its options are the fields of `ServerSettings`, and what a command alone is told."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.serving.settings import ServerSettings
from loomrl.system.http.options import DieWithParent, PortFile, begin, with_settings


@with_settings(ServerSettings)
def serve(
    champion_folder: Annotated[
        Path | None,
        typer.Option("--champion-folder", "--folder", help="Serve an export folder, without a registry."),
    ] = None,
    challenger_folder: Annotated[Path | None, typer.Option(help="An export folder that decides in shadow.")] = None,
    die_with_parent: DieWithParent = None,
    port_file: PortFile = None,
    **settings: Any,
) -> None:
    """Serve a policy's champion; its challenger decides the same requests without acting."""
    from loomrl.serving.server import serve as run
    from loomrl.serving.uvicorn_server import GRACE_SECONDS

    begin(die_with_parent, GRACE_SECONDS)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    folders = {"champion": champion_folder, "challenger": challenger_folder}
    named = {role: folder for role, folder in folders.items() if folder is not None}
    run(ServerSettings(**settings, folders=named), port_file)

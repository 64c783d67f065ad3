"""`loomrl hub`: the Trajectory API's server."""

from typing import Annotated, Any

import typer

from loomrl.language.trajectory.settings import MIB, HubSettings
from loomrl.system.http.options import DieWithParent, MaxBodyMib, PortFile, begin, with_settings

app = typer.Typer(name="hub", help="Serve the Trajectory API.", no_args_is_help=True)
_DEFAULT = HubSettings()


@app.callback()
def hub() -> None:
    """Environments post scored groups to a hub, trainers take batches from it."""


@app.command()
@with_settings(HubSettings)
def serve(
    memory_mib: Annotated[
        int, typer.Option(min=0, help="Of waiting groups, compressed; others wait in the database alone.")
    ] = _DEFAULT.memory_bytes // MIB,
    max_body_mib: MaxBodyMib = _DEFAULT.max_body_bytes // MIB,
    keep_up: Annotated[
        bool, typer.Option("--keep-up", help="Start it again when it is killed; meanwhile connections wait.")
    ] = False,
    die_with_parent: DieWithParent = None,
    port_file: PortFile = None,
    **settings: Any,
) -> None:
    """Serve environments and trainers of the Atropos wire; see docs/trajectory-api.md."""
    from loomrl.language.trajectory.server import serve as run

    begin(die_with_parent)
    chosen = HubSettings(**settings, memory_bytes=memory_mib * MIB, max_body_bytes=max_body_mib * MIB)
    raise typer.Exit(run(chosen, port_file, keep_up))

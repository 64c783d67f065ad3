"""`loomrl hub`: the Trajectory API's server."""

from typing import Annotated

import typer

from loomrl.language.trajectory.settings import MIB, HubSettings
from loomrl.system.http.options import DieWithParent, Host, MaxBodyMib, Port, PortFile, begin

app = typer.Typer(name="hub", help="Serve the Trajectory API.", no_args_is_help=True)
_DEFAULT = HubSettings()


@app.callback()
def hub() -> None:
    """Environments post scored groups to a hub, trainers take batches from it."""


@app.command()
def serve(
    host: Host = _DEFAULT.host,
    port: Port = _DEFAULT.port,
    database_url: Annotated[
        str | None, typer.Option(help="Default: LOOMRL_HUB_DATABASE_URL, else SQLite under the home.")
    ] = None,
    memory_mib: Annotated[
        int, typer.Option(min=0, help="Of waiting groups, compressed; others wait in the database alone.")
    ] = _DEFAULT.memory_bytes // MIB,
    max_body_mib: MaxBodyMib = _DEFAULT.max_body_bytes // MIB,
    max_waiting_groups: Annotated[
        int, typer.Option(min=1, help="Beyond them posts are answered 503, to come again.")
    ] = _DEFAULT.max_waiting_groups,
    silent_seconds: Annotated[
        float, typer.Option(help="Without a word from an environment until its share of batches is let go.")
    ] = _DEFAULT.silent_seconds,
    starved_seconds: Annotated[
        float, typer.Option(help="Without a group from an environment that talks, likewise.")
    ] = _DEFAULT.starved_seconds,
    stuck_seconds: Annotated[
        float, typer.Option(min=0, help="Until a group of a size that divides no batch is left out of packing.")
    ] = _DEFAULT.stuck_seconds,
    equal_once: Annotated[
        bool, typer.Option("--equal-once", help="Equal posts within two minutes count once, whatever became of them.")
    ] = False,
    lowest_score: Annotated[float, typer.Option(help="Scores below are cut to it.")] = _DEFAULT.lowest_score,
    highest_score: Annotated[float, typer.Option(help="Scores above are cut to it.")] = _DEFAULT.highest_score,
    max_sequence_tokens: Annotated[
        int | None, typer.Option(min=1, help="Groups with a longer sequence are refused.")
    ] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="Policy versions a group may be behind the trainer's.")
    ] = None,
    keep_up: Annotated[
        bool, typer.Option("--keep-up", help="Start it again when it is killed; meanwhile connections wait.")
    ] = False,
    die_with_parent: DieWithParent = None,
    port_file: PortFile = None,
) -> None:
    """Serve environments and trainers of the Atropos wire; see docs/trajectory-api.md."""
    from loomrl.language.trajectory.server import serve as run

    begin(die_with_parent)
    settings = HubSettings(
        host=host,
        port=port,
        database_url=database_url,
        memory_bytes=memory_mib * MIB,
        max_body_bytes=max_body_mib * MIB,
        max_waiting_groups=max_waiting_groups,
        silent_seconds=silent_seconds,
        starved_seconds=starved_seconds,
        stuck_seconds=stuck_seconds,
        equal_once=equal_once,
        lowest_score=lowest_score,
        highest_score=highest_score,
        max_sequence_tokens=max_sequence_tokens,
        max_staleness=max_staleness,
    )
    raise typer.Exit(run(settings, port_file, keep_up))

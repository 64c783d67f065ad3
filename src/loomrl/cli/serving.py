"""`loomrl serve`; the log has commands of its own in `audit_commands`, operators have theirs in `operator_commands`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from loomrl.cli import orders as operator_commands
from loomrl.cli.audit import audit_app

Policy = Annotated[str, typer.Option("--policy", help="The policy's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the top level."""
    app.command("serve")(serve)
    app.add_typer(audit_app, name="audit")
    operator_commands.register(app)


def serve(
    policy: Policy,
    host: Annotated[str, typer.Option(help="Others can reach it only with tokens configured.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8100,
    champion: Annotated[str | None, typer.Option(help="Pin a version instead of following the alias.")] = None,
    challenger: Annotated[str | None, typer.Option(help="Pin a version instead of following the alias.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Serve an export folder, without a registry.")] = None,
    rate: Annotated[float, typer.Option(help="Decisions per second and agent.")] = 1_000.0,
    token_rate: Annotated[
        float | None, typer.Option(help="Decisions per second of all who show one token; default: 20,000 or --rate.")
    ] = None,
    total_rate: Annotated[
        float | None, typer.Option(help="Decisions per second of all agents together; default: 50,000 or --rate.")
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Decisions, or entries of feedback, in one request.")] = 8_192,
    explore: Annotated[
        str | None, typer.Option(help="How, for all versions, such as kind=epsilon,epsilon=0.05,share=0.1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of exploration; default: the system's entropy.")] = None,
    server: Annotated[
        str | None, typer.Option(envvar="LOOMRL_AUDIT_SERVER", help="Name of its audit chain; default: the first free.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that answer on the port.")] = 1,
    durability: Annotated[
        Literal["background", "strict"],
        typer.Option(help="strict: answer when a decision is on the disk; background: synced within 20 ms."),
    ] = "background",
    compact_seconds: Annotated[
        float | None, typer.Option(min=1, help="Compact closed segments of its audit log this often.")
    ] = None,
    port_file: Annotated[Path | None, typer.Option(help="Gets the URL and process id once bound.")] = None,
    require_signature: Annotated[
        bool | None, typer.Option(help="Refuse unsigned versions; default: those of the registry, not of a folder.")
    ] = None,
) -> None:
    """Serve a policy's champion; its challenger decides the same requests without acting."""
    import logging

    from loomrl.serving.config import ExplorationConfig
    from loomrl.serving.server import serve as run
    from loomrl.serving.settings import ServerSettings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folders = {"champion": folder} if folder else {}
    settings = ServerSettings(
        policy,
        host,
        port,
        champion=champion,
        challenger=challenger,
        folders=folders,
        rate=rate,
        token_rate=token_rate,
        total_rate=total_rate,
        max_rows=max_rows,
        seed=seed,
        exploration=None if explore is None else ExplorationConfig.read(explore),
        server=server,
        workers=workers,
        durability=durability,
        compact_seconds=compact_seconds,
        require_signature=require_signature,
    )
    run(settings, port_file)

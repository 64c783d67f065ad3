"""`loomrl serve` and `loomrl audit`; what operators do to running servers is in `operator_commands`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.serving import operator_commands

audit_app = typer.Typer(help="Read and verify the record of every decision.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Policy = Annotated[str, typer.Option("--policy", help="The policy's name.")]
AnyPolicy = Annotated[str | None, typer.Option("--policy", help="Only this policy's; all if left out.")]


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
    total_rate: Annotated[
        float | None, typer.Option(help="Decisions per second of all agents together; default: no limit.")
    ] = None,
    explore: Annotated[
        str | None, typer.Option(help="How, for all versions, such as kind=epsilon,epsilon=0.05,share=0.1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of exploration; default: the system's entropy.")] = None,
    server: Annotated[
        str | None, typer.Option(envvar="LOOMRL_AUDIT_SERVER", help="Name of its audit chain; default: the first free.")
    ] = None,
    port_file: Annotated[Path | None, typer.Option(help="Gets the URL and process id once bound.")] = None,
    require_signature: Annotated[
        bool | None, typer.Option(help="Refuse unsigned versions; default: those of the registry, not of a folder.")
    ] = None,
) -> None:
    """Serve a policy's champion; its challenger decides the same requests without acting."""
    import logging

    from loomrl.serving.config import ExplorationConfig
    from loomrl.serving.parts import ServerSettings
    from loomrl.serving.server import serve as run

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
        total_rate=total_rate,
        seed=seed,
        exploration=None if explore is None else ExplorationConfig.read(explore),
        server=server,
        require_signature=require_signature,
    )
    run(settings, port_file)


# --- audit ------------------------------------------------------------------------------------------------------


@audit_app.command("verify")
def verify(policy: AnyPolicy = None, as_json: AsJson = False) -> None:
    """Check every chain against itself and against the heads anchored in LoomDB; exit code 1 when one is not whole."""
    from dataclasses import asdict

    from loomrl.errors import GateRefused
    from loomrl.loomdb.database import LoomDB
    from loomrl.serving.history import chains
    from loomrl.serving.verification import Anchor, verify_chain

    database = LoomDB.open()
    reports = []
    for folder in chains(policy):
        heads = database.audit_heads(f"{folder.parent.name}/{folder.name}")
        reports.append(verify_chain(folder, [Anchor(head.sequence, head.digest) for head in heads]))
    broken = [report.server for report in reports if not report.intact]
    if as_json:
        _print_json({"intact": not broken, "chains": [asdict(report) for report in reports]})
    for report in [] if as_json else reports:
        verdict = "whole" if report.intact else "BROKEN"
        typer.echo(f"{report.server}: {verdict}, {report.num_records} records, {report.num_anchors} anchored heads")
        for line in report.findings + report.notes:
            typer.echo(f"  {line}")
    if not reports and not as_json:
        typer.echo("no audit log yet; `loomrl serve` writes one")
    if broken:
        raise GateRefused(f"audit log not whole: {', '.join(broken)}")


@audit_app.command("show")
def show(
    decision: Annotated[str | None, typer.Argument(help="A decision id; the latest records if left out.")] = None,
    policy: AnyPolicy = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the latest records.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show one decision with its feedback and mirror, or the latest records."""
    from collections import deque

    from loomrl.serving.history import records, require_decision

    if decision is not None:
        require_decision(decision)
        found = [entry for entry in records(policy) if entry.get("decision_id") == decision]
    else:
        latest = deque(records(policy), maxlen=100_000)
        found = sorted(latest, key=lambda entry: entry["timestamp"])[-last:]
    if as_json:
        _print_json({"records": found})
        return
    for entry in found:
        typer.echo(_line(entry))


@audit_app.command("export")
def export(
    output: Annotated[Path, typer.Argument(help="A .jsonl, .json or .csv file.")],
    policy: AnyPolicy = None,
) -> None:
    """Every decision with its reward joined from the feedback."""
    from loomrl.serving.history import join, records, write_table

    decisions = join(records(policy))
    write_table(output, decisions)
    typer.echo(f"{len(decisions)} decisions in {output}")


def _line(entry: dict[str, Any]) -> str:
    shown = (
        "decision_id", "agent_id", "version", "role", "action", "reward", "q_value", "exploration_flag", "override",
        "operation", "actor", "reason",
    )  # fmt: skip
    facts = "  ".join(f"{key}={entry[key]}" for key in shown if entry.get(key) is not None and entry[key] is not False)
    return f"{entry['timestamp']}  {entry['kind']:<9} {facts}"


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, sort_keys=True))

"""`loomrl serve`, `loomrl audit` and `loomrl override`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

audit_app = typer.Typer(help="Read and verify the record of every decision.", no_args_is_help=True)
override_app = typer.Typer(help="Take decisions out of a policy's hands.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Policy = Annotated[str, typer.Option("--policy", help="The policy's name.")]
AnyPolicy = Annotated[str | None, typer.Option("--policy", help="Only this policy's; all if left out.")]
Server = Annotated[
    str | None, typer.Option("--server", help="URL of a running server; without it the file servers follow is changed.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the top level."""
    app.command("serve")(serve)
    app.add_typer(audit_app, name="audit")
    app.add_typer(override_app, name="override")


def serve(
    policy: Policy,
    host: Annotated[str, typer.Option(help="Others can reach it only with LOOMRL_OPERATOR_TOKEN set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8100,
    champion: Annotated[str | None, typer.Option(help="Pin a version instead of following the alias.")] = None,
    challenger: Annotated[str | None, typer.Option(help="Pin a version instead of following the alias.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Serve an export folder, without a registry.")] = None,
    rate: Annotated[float, typer.Option(help="Decisions per second and agent.")] = 1_000.0,
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
        seed=seed,
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
    shown = ("decision_id", "agent_id", "version", "action", "reward", "q_value", "exploration_flag", "override")
    facts = "  ".join(f"{key}={entry[key]}" for key in shown if entry.get(key) is not None and entry[key] is not False)
    return f"{entry['timestamp']}  {entry['kind']:<9} {facts}"


# --- overrides --------------------------------------------------------------------------------------------------


@override_app.command("set")
def set_override(
    policy: Policy,
    reason: Annotated[str, typer.Option(help="Why; it stands in the audit log.")],
    action: Annotated[str | None, typer.Option(help="Pin this action, as JSON: 0, or [0.1, -0.3].")] = None,
    version: Annotated[str | None, typer.Option(help="Pin this version.")] = None,
    agent: Annotated[str | None, typer.Option(help="For this agent; for all if left out.")] = None,
    person: Annotated[str | None, typer.Option(help="Who; default: the user's name.")] = None,
    expires_in: Annotated[float | None, typer.Option(min=0.001, help="Seconds; until cleared if left out.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Pin an action or a version. It holds until it expires or is cleared, also over a restart."""
    import getpass

    fields: dict[str, Any] = {"reason": reason, "person": person or getpass.getuser(), "agent_id": agent}
    fields |= {"action": None if action is None else _parse_action(action), "version": version}
    if server is not None:
        from loomrl.serving.client import PolicyClient

        lifetime = {} if expires_in is None else {"expires_in_seconds": expires_in}
        with PolicyClient(server) as client:
            set_one = client.set_override(**fields, **lifetime)
    else:
        set_one = _set_in_file(policy, fields, expires_in)
    if as_json:
        _print_json(set_one)
    elif server is not None:
        typer.echo(f"override {set_one['id']} is in force on {server}")
    else:
        typer.echo(f"override {set_one['id']} is written; running servers follow within a second")


@override_app.command("clear")
def clear_override(
    policy: Policy,
    override_id: Annotated[str | None, typer.Argument(help="An override's id; all if left out.")] = None,
    server: Server = None,
) -> None:
    """Lift one override, or all: the policy decides again."""
    if server is not None:
        from loomrl.serving.client import PolicyClient

        with PolicyClient(server) as client:
            lifted = client.clear_override(override_id)
        when = f"on {server}"
    else:
        from loomrl.serving.overrides import OverrideStore

        lifted = [override.id for override in OverrideStore(policy).clear(override_id)]
        when = "in the file; running servers follow within a second"
    typer.echo(f"lifted: {', '.join(lifted) or 'none'} ({when})")


@override_app.command("list")
def list_overrides(policy: Policy, as_json: AsJson = False) -> None:
    """The overrides in force."""
    from loomrl.serving.overrides import OverrideStore

    active = OverrideStore(policy).active()
    if as_json:
        _print_json({"overrides": [override.to_json() for override in active]})
        return
    for override in active:
        typer.echo(f"{override.id}  {override.describe()}")
    if not active:
        typer.echo("no override is in force")


def _set_in_file(policy: str, fields: dict[str, Any], expires_in: float | None) -> dict[str, Any]:
    import time

    from pydantic import ValidationError

    from loomrl.errors import ConfigError
    from loomrl.serving.overrides import Override, OverrideStore

    try:
        override = Override(**fields, expires=None if expires_in is None else time.time() + expires_in)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"]) from error
    OverrideStore(policy).set(override)
    return override.to_json()


def _parse_action(text: str) -> Any:
    from loomrl.errors import ConfigError

    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--action {text!r} is not JSON; examples: 0, [0.1, -0.3]") from error


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, sort_keys=True))

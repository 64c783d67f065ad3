"""`loomrl audit`: verify, show, export, compact and recompute the record of every decision."""

import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomrl.cli.output import AsJson
from loomrl.system.plain import on_one_line

if TYPE_CHECKING:
    from loomrl.serving.recomputation import ReplayReport
    from loomrl.storage.audit.full_verification import AuditReport

audit_app = typer.Typer(help="Read, verify and recompute the record of every decision.", no_args_is_help=True)

AnyPolicy = Annotated[str | None, typer.Option("--policy", help="Only this policy's; all if left out.")]


@audit_app.command("verify")
def verify(
    policy: AnyPolicy = None,
    signed: Annotated[bool, typer.Option("--signed", help="Demand that everything anchored is signed.")] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Demand the chains of all hosts that share LoomDB here.")
    ] = False,
    exported: Annotated[
        Path | None, typer.Option("--anchor", metavar="FILE", help="Hold against a file of `loomrl audit anchor` too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every chain against itself and against what LoomDB knows of it; exit code 1 when one is not whole."""
    from loomrl.errors import ConfigError, GateRefused
    from loomrl.storage.audit.exported_anchor import read_exported
    from loomrl.storage.audit.full_verification import verify_here

    report = verify_here(policy, signed, everywhere, None if exported is None else read_exported(exported))
    if policy is not None and not report.all_findings() and not (report.chains or report.elsewhere):
        raise ConfigError(f"--policy {policy}: neither this home nor LoomDB knows an audit log of it; is it misspelt?")
    if as_json:
        _print_json({"intact": report.intact, **asdict(report)})
    else:
        _print_audit(report)
    if found := report.all_findings():
        rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise GateRefused(f"audit log not whole: {found[0]}{rest}")


@audit_app.command("anchor")
def anchor(file: Annotated[Path, typer.Argument(help="The file to write; keep it on another machine.")]) -> None:
    """Write a signed file of all chains' heads: it shows later that chains and LoomDB were rolled back together."""
    from loomrl.storage.audit.exported_anchor import export_anchor
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as db:
        made = export_anchor(db, file)
    typer.echo(f"{len(made.heads)} chains, statement {made.number} of LoomDB: {file}")


@audit_app.command("accept")
def accept(
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who accepts it.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")],
    policy: AnyPolicy = None,
) -> None:
    """Put on record, signed, that a person knows of everything `verify` finds now: it becomes a note, shown ever after.

    For what cannot come back: a lost disk, or LoomDB restored from a backup.
    """
    from loomrl.errors import ConfigError
    from loomrl.storage.audit.anchors import state
    from loomrl.storage.audit.full_verification import verify_all
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.system.security.signing import signing_key

    if not by.strip() or not reason.strip():
        raise ConfigError("accepting needs the name of a person (--by) and why (--reason)")
    signing_key()  # only what is signed is accepted
    with LoomDB.open() as db:
        found = verify_all(db, policy).all_findings()
        if found:
            state(db, "accepted", "", findings=found, by=by.strip(), reason=reason.strip())
    for finding in found:
        typer.echo(finding)
    typer.echo(f"{len(found)} findings accepted by {by.strip()}")


@audit_app.command("show")
def show(
    decision: Annotated[str | None, typer.Argument(help="A decision id; the latest records if left out.")] = None,
    policy: AnyPolicy = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the latest records.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show one decision with its feedback and mirror, or the latest records."""
    from collections import deque

    from loomrl.storage.audit.history import records, require_decision

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
    """Every decision with its reward joined from the feedback, and what challengers would have done."""
    from loomrl.storage.audit.history import join, records, write_table

    decisions = join(records(policy))
    write_table(output, decisions)
    typer.echo(f"{len(decisions)} decisions in {output}")


@audit_app.command("compact")
def compact(policy: AnyPolicy = None) -> None:
    """Write closed segments as Parquet: smaller, and ready for queries; every command reads them as before."""
    from loomrl.storage.audit.compaction import compact as compact_chain
    from loomrl.storage.audit.history import chains

    paths = [path for folder in chains(policy) for path in compact_chain(folder)]
    for path in paths:
        typer.echo(f"{path}: {path.stat().st_size} bytes")
    typer.echo(f"{len(paths)} segments compacted")


@audit_app.command("recompute")
def recompute(
    policy: Annotated[str | None, typer.Argument(help="Only this policy's; all if left out.")] = None,
    version: Annotated[str | None, typer.Option("--version", help="Only this version's decisions.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first so many.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The files that decided, where no registry has them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute each decision with the verified model that took it, and compare bit for bit.

    Exit code 1 when one differs, or cannot be recomputed.
    """
    from loomrl.errors import GateRefused

    report = _recompute_with_progress(policy, version, limit, folder)
    if as_json:
        _print_json({"equal": report.equal, **vars(report)})
    else:
        _print_recomputed(report)
    if not report.equal:
        left_out = sum(report.not_replayed.values())
        raise GateRefused(f"{report.num_different} decisions differ, {left_out} could not be recomputed")


@audit_app.command("replay", hidden=True)
@functools.wraps(recompute)
def replay(**options: Any) -> None:
    """The name of `recompute` before replay meant experience replay alone; it ends with the next release."""
    typer.secho("loomrl audit replay is loomrl audit recompute now", fg="yellow", err=True)
    recompute(**options)


def _recompute_with_progress(
    policy: str | None, version: str | None, limit: int | None, folder: Path | None
) -> "ReplayReport":
    from rich.console import Console
    from rich.progress import Progress

    from loomrl.serving.recomputation import LogRecomputation
    from loomrl.storage.audit.history import count_decisions

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("recomputing", total=limit or count_decisions(policy))
        return LogRecomputation(version, limit, folder, lambda done: progress.update(task, completed=done)).run(policy)


def _print_audit(report: "AuditReport") -> None:
    typer.echo(f"LoomDB: {report.num_statements} statements, {report.num_signed_statements} of them signed")
    for line in report.findings + report.notes:
        typer.echo(f"  {line}")
    for chain in report.chains:
        verdict = "whole" if chain.intact else "BROKEN"
        heads = f"{chain.num_anchors} anchored heads, {chain.num_signed} of them signed"
        typer.echo(f"{chain.server}: {verdict}, {chain.num_records} records, {heads}")
        for line in chain.findings + chain.notes:
            typer.echo(f"  {line}")
    for server, host in report.elsewhere.items():
        typer.echo(f"{server}: not looked at: it lies on {host} (--everywhere demands it here)")
    if not report.chains:
        typer.echo("no audit log yet; `loomrl serve` writes one")


def _print_recomputed(report: "ReplayReport") -> None:
    typer.echo(f"{report.num_decisions} decisions, {report.num_equal} bitwise equal, {report.num_different} different")
    for name, count in report.by.most_common():
        typer.echo(f"  equal, by {name}: {count}")
    for reason, count in report.not_replayed.most_common():
        typer.echo(f"  not recomputed: {count}: {reason}")
    for line in report.differences + report.notes:
        typer.echo(f"  {line}")


def _line(entry: dict[str, Any]) -> str:
    shown = (
        "decision_id", "agent_id", "version", "role", "action", "reward", "q_value", "exploration_flag", "override",
        "operation", "actor", "reason",
    )  # fmt: skip
    facts = "  ".join(f"{key}={entry[key]}" for key in shown if entry.get(key) is not None and entry[key] is not False)
    return on_one_line(f"{entry['timestamp']}  {entry['kind']:<9} {facts}")


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, sort_keys=True))

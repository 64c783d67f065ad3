"""`loomrl policy ...`: versions, promotion, rollback, approval, lineage, rebuild."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.cli.output import AsJson, print_replayed

app = typer.Typer(help="Versions of policies: who acts, why, and where they came from.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="POLICY", help="A policy's name, for example cartpole.")]
Reference = Annotated[str, typer.Argument(metavar="POLICY[@VERSION|@ALIAS]", help="For example cartpole@champion.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run in the state `waiting`.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")]


@app.command("list")
def list_versions(
    policy: Annotated[str | None, typer.Argument(metavar="[POLICY]", help="One policy; all if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """List versions and who holds which alias."""
    from loomrl.promotion import show
    from loomrl.storage.registry import Registry

    rows = show.rows(Registry(), policy)
    show.print_json(rows) if as_json else show.print_rows(rows)


@app.command("show")
def show_version(reference: Reference, as_json: AsJson = False) -> None:
    """Show one version: aliases, decision, digests, when it was champion."""
    from loomrl.promotion import lineage, show
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.registry import Registry

    registry, db = Registry(), LoomDB.open()
    found = show.details(registry.require(*lineage.parse_version(reference)), registry, db)
    show.print_json(found) if as_json else show.print_details(found)


@app.command()
def promote(
    policy: Name,
    version: Annotated[str, typer.Argument(help="A version's number, or an alias such as challenger.")],
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who promotes it.")] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")] = "by hand",
) -> None:
    """Promote a version by hand, by the same rules as a life cycle; exit code 1 when they refuse it."""
    from loomrl.errors import GateRefused
    from loomrl.promotion import show
    from loomrl.promotion.by_hand import promote_by_hand
    from loomrl.promotion.rules import PROMOTED, UNCHANGED

    decision, outcome = promote_by_hand(policy, version, by, reason)
    show.print_decision(decision)
    if decision.decision not in (PROMOTED, UNCHANGED):
        raise GateRefused(outcome.message)
    typer.echo(outcome.message)


@app.command()
def rollback(
    policy: Name,
    reason: Why,
    by: By,
    to: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="An earlier champion.")] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Without the flow: needs nothing but the registry.")] = False,
) -> None:
    """Make the previous champion champion again, or version --to."""
    from loomrl.promotion import by_hand
    from loomrl.promotion import promote as promotion

    project = None if direct else by_hand.project_with_flows()
    if project is not None:
        raise typer.Exit(by_hand.run_rollback_flow(project, policy, reason, by, to))
    with promotion.exclusive(policy, timeout=30):
        outcome = promotion.rollback(policy, reason, by, to)
    typer.echo(outcome.message)


@app.command()
def replay(
    reference: Reference,
    claim: Annotated[str, typer.Argument(help="Id of a claim that refused it, for example not_worse.")],
    as_json: AsJson = False,
) -> None:
    """Play the episode again that shows why a version was refused beside the champion. Exit code 3 when it does not."""
    from loomrl.promotion.lineage import parse_version
    from loomrl.promotion.replay import replay_refusal
    from loomrl.storage.registry import Registry

    registry = Registry()
    print_replayed(replay_refusal(registry, registry.require(*parse_version(reference)), claim), as_json)


@app.command()
def sign(reference: Reference, by: By, reason: Why) -> None:
    """Sign a registered version again: one from before versions were signed, or whose key is no longer trusted.

    Its files must be what was registered. Who signs, and why, is put on record.
    """
    from loomrl.promotion.lineage import parse_version
    from loomrl.promotion.signing_by_hand import sign_by_hand

    signed = sign_by_hand(*parse_version(reference), by, reason)
    typer.echo(f"version {signed.version} of {signed.policy} is signed with the key {signed.key[:16]}, by {signed.by}")


@app.command()
def approve(run: Run, by: By, reason: Why) -> None:
    """Approve a waiting run: the rules are applied again, then it is promoted; exit code 1 when they refuse it now."""
    from loomrl.errors import GateRefused
    from loomrl.promotion.approvals import answer
    from loomrl.promotion.rules import REFUSED

    record = answer(run, True, by, reason)
    if record.state == REFUSED:
        raise GateRefused(record.message)
    typer.echo(record.message)


@app.command()
def reject(run: Run, by: By, reason: Why) -> None:
    """Reject a waiting run: its version is refused, the champion stays."""
    from loomrl.promotion.approvals import answer

    typer.echo(answer(run, False, by, reason).message)


@app.command()
def lineage(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[POLICY[@VERSION]|KIND:ID]",
            help="A version; snapshot:DIGEST or plugin:PACKAGE@DIGEST goes forward.",
        ),
    ] = None,
    decision: Annotated[
        str | None, typer.Option("--decision", metavar="ID", help="Start from an audit record.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a version came from, or what came of a snapshot or run."""
    from loomrl.errors import ConfigError
    from loomrl.promotion import lineage as tracing
    from loomrl.promotion import show
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.registry import Registry

    if (reference is None) == (decision is None):
        raise ConfigError("name a version (cartpole@champion), a node (snapshot:DIGEST) or --decision ID, one of them")
    db = LoomDB.open()
    found: Any
    if decision is not None:
        found = tracing.trace_decision(decision, Registry(), db)
    elif reference is not None and ":" in reference:
        found = tracing.descendants(reference, db)
    else:
        registry = Registry()
        found = tracing.trace(registry.require(*tracing.parse_version(reference or "")), registry, db)
    show.print_json(found.to_json()) if as_json else show.print_lineage(found)


@app.command()
def decisions(
    origin: Annotated[
        str,
        typer.Argument(
            metavar="ORIGIN",
            help="POLICY[@VERSION], run:ID, commit:SHA, snapshot:DIGEST, plugin:PACKAGE, config:FILE or config:SHA256.",
        ),
    ],
    ids: Annotated[bool, typer.Option("--ids", help="Every decision, one a line, in place of the counts.")] = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="With --ids: those behind this one.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="With --ids: at most so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which decisions came of a config, commit, snapshot, run or version: how many, when, on which host."""
    from itertools import islice

    from loomrl.errors import ConfigError
    from loomrl.promotion import decisions as forward
    from loomrl.promotion import show
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.registry import Registry

    if not ids and (after is not None or limit is not None):
        raise ConfigError("--after and --limit are for --ids")
    if ids:
        for one in islice(forward.each_decision(origin, Registry(), after), limit):
            show.print_decision_id(one, as_json)
        return
    with LoomDB.open() as db:
        found = forward.decisions_of(origin, Registry(), db)
    show.print_json(found.to_json()) if as_json else show.print_decisions(found)


@app.command()
def rebuild(
    reference: Reference,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep the rebuilt project.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version again from its lineage and compare digests; exit code 1 when one differs."""
    from loomrl.errors import GateRefused
    from loomrl.promotion import lineage as tracing
    from loomrl.promotion import show
    from loomrl.promotion.rebuild import rebuild as rebuild_version
    from loomrl.storage.registry import Registry

    registry = Registry()
    report = rebuild_version(registry.require(*tracing.parse_version(reference)), registry, keep)
    show.print_json(report.to_json()) if as_json else show.print_rebuild(report)
    if not report.equal:
        different = ", ".join(artifact.name for artifact in report.artifacts if not artifact.equal)
        raise GateRefused(f"{report.policy}@{report.version} came out different: {different}")

"""`loomrl safety ...`: read a safety case, check that it is whole, replay its counterexamples."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Safety cases: show, check, replay.", no_args_is_help=True)

CaseArgument = Annotated[Path, typer.Argument(metavar="CASE", help="case.json, or the folder it lies in.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def show(case: CaseArgument, as_json: JsonOption = False) -> None:
    """Print a case's claims and the gate's decision."""
    from loomrl.safety.case import read_case

    found = read_case(case)
    if as_json:
        _print_json(found.to_json())
    else:
        _print_claims(found)


@app.command()
def check(case: CaseArgument, as_json: JsonOption = False) -> None:
    """Compute the evidence's digests again and derive the decision from the claims. Exit code 3 when they differ."""
    from loomrl.errors import ArtifactError
    from loomrl.safety.case import check_case, cited_evidence, read_case

    problems = check_case(case)
    found = read_case(case)
    count = len(cited_evidence(found))
    if as_json:
        passed = found.decision.passed
        _print_json({"whole": not problems, "problems": problems, "evidence_files": count, "passed": passed})
    else:
        _print_claims(found)
        typer.echo(f"{count} files of evidence examined")
    if problems:
        raise ArtifactError(f"{case} is not whole: {'; '.join(problems)}")


@app.command()
def rerun(
    case: CaseArgument,
    config: Annotated[Path, typer.Option(help="The policy's config, such as configs/cartpole.yaml.")],
    as_json: JsonOption = False,
) -> None:
    """Examine every claim again, with the folders beside the case's. Exit code 3 when a verdict is another one."""
    from loomrl.config import load_config
    from loomrl.errors import ArtifactError
    from loomrl.safety.case import case_file
    from loomrl.safety.rerun import rerun as examine_again

    beside = case_file(case).resolve().parent.parent
    folders = [beside / stage for stage in ("environment", "training", "evaluation")]
    outcome = examine_again(case, load_config(config).safety, *folders)
    if as_json:
        _print_json(outcome.to_json())
    else:
        rows = [
            [one.claim, _shown(one.verdict), _shown(one.again), "yes" if one.identical else "no"]
            for one in outcome.claims
        ]
        _print_table("claim", "verdict", "again", "identical", rows=rows)
    if outcome.differing:
        named = ", ".join(f"{one.claim} was {_shown(one.verdict)}, is {_shown(one.again)}" for one in outcome.differing)
        raise ArtifactError(f"{case} does not come out the same: {named}")


@app.command()
def replay(
    case: CaseArgument,
    claim: Annotated[str, typer.Argument(help="The id of a refuted claim.")],
    environment: Annotated[
        Path | None, typer.Option(help="The snapshot's folder; by default `environment` beside the case's folder.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="The policy's folder; by default `training` beside the case's folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a refuted claim's counterexample again. Exit code 3 when the failure does not come back."""
    from loomrl.errors import ArtifactError
    from loomrl.safety.case import case_file
    from loomrl.safety.replay import replay as play_again

    beside = case_file(case).resolve().parent.parent
    outcome = play_again(case, claim, environment or beside / "environment", policy or beside / "training")
    if as_json:
        _print_json(outcome.to_json())
    else:
        typer.echo(f"{outcome.claim}: {outcome.finding}")
        if outcome.identical is not None:
            typer.echo(f"the episode is {'identical to' if outcome.identical else 'different from'} the recorded one")
    if not outcome.reproduced:
        raise ArtifactError(f"the counterexample of {claim} did not fail again: {outcome.finding}")


@app.command()
def controls(case: CaseArgument, as_json: JsonOption = False) -> None:
    """List the controls of standards with their evidence in a case, or the command that shows them in operation."""
    from loomrl.safety.case import read_case
    from loomrl.safety.controls import known_controls

    found = read_case(case)
    files = {claim.id: [one.model_dump() for one in claim.evidence] for claim in found.claims}
    listed: list[dict[str, Any]] = [
        {
            "control": one.name,
            "evidence": {name: files[name] for name in found.controls.get(one.name, [])},
            "operation": one.operation,
        }
        for one in known_controls()
    ]
    if as_json:
        _print_json(listed)
        return
    rows = [[one["control"], ", ".join(one["evidence"]) or one["operation"] or "nothing"] for one in listed]
    _print_table("control", "shown by", rows=rows)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a safety case."""
    from loomrl.safety.case import schema_bytes

    typer.echo(schema_bytes().decode(), nl=False)


@app.command()
def checks(as_json: JsonOption = False) -> None:
    """List the safety checks found in this installation, with the settings each accepts."""
    from loomrl.safety.check import find_checks

    found: list[dict[str, Any]] = [
        {
            "name": check.NAME,
            "stage": check.STAGE,
            "local": check.LOCAL,
            "settings": check.Config().model_dump(mode="json"),
        }
        for check in find_checks().values()
    ]
    if as_json:
        _print_json(found)
        return
    _print_table("check", "stage", "settings", rows=[[c["name"], c["stage"], _settings(c["settings"])] for c in found])


def _shown(verdict: Any) -> str:
    return "missing" if verdict is None else str(verdict).removeprefix("statistically_")


def _settings(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _print_claims(case: Any) -> None:
    rows = []
    for claim in case.claims:
        name = claim.id if claim.mandatory else f"{claim.id} (optional)"
        rows.append([name, str(claim.verdict).removeprefix("statistically_"), claim.finding])
    _print_table("claim", "verdict", "finding", rows=rows)
    for claim in case.claims:
        if claim.counterexample:
            typer.echo(f"{claim.id}: {claim.counterexample.description}")
            typer.echo(f"  replay: {claim.counterexample.replay_command}")
    typer.echo(f"gate: {'passed' if case.decision.passed else 'blocked'}: {case.decision.reason}")


def _print_table(*columns: str, rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))

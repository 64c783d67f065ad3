"""`loomrl safety ...`: read a safety case, check that it is whole, replay its counterexamples."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.cli.output import AsJson, print_json, print_replayed, print_table

app = typer.Typer(help="Safety cases: show, check, replay.", no_args_is_help=True)

CaseArgument = Annotated[Path, typer.Argument(metavar="CASE", help="case.json, or the folder it lies in.")]


@app.command()
def show(case: CaseArgument, as_json: AsJson = False) -> None:
    """Print a case's claims and the gate's decision."""
    from loomrl.safety.case.document import read_case

    found = read_case(case)
    if as_json:
        print_json(found.to_json())
    else:
        _print_claims(found)


@app.command()
def check(
    case: CaseArgument,
    config: Annotated[
        Path | None, typer.Option(help="The policy's config; by default configs/POLICY.yaml of this project.")
    ] = None,
    digests_only: Annotated[bool, typer.Option("--digests-only", help="Examine no claim again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check digests, decision and signature, and examine every claim again. Exit code 3 when anything differs.

    A claim is examined again from the stages' folders beside the case's. The signature is that of a registered version
    with this case: in its own folder, or among those fetched from the registry.
    """
    from datetime import date

    from loomrl.errors import ArtifactError
    from loomrl.safety.case.document import check_case, cited_evidence, read_case

    found, kept = read_case(case), _keeps_evidence(case)
    problems = check_case(case, kept)
    signature = _signature(case, problems)
    outcome, why_not = (None, "--digests-only") if digests_only else _examined_again(case, config)
    problems += [] if outcome is None else outcome.problems
    problems += [
        f"the waiver of {claim.id} by {claim.waiver.person} expired on {claim.waiver.expires}"
        for claim in found.claims
        if claim.waiver is not None and date.fromisoformat(claim.waiver.expires) < date.today()
    ]
    count = len(cited_evidence(found)) if kept else 0
    if as_json:
        document = {"whole": not problems, "problems": problems, "evidence_files": count, "signature": signature}
        claims = None if outcome is None else outcome.to_json()["claims"]
        print_json(document | {"passed": found.decision.passed, "claims": claims, "not_examined_because": why_not})
    else:
        _print_claims(found)
        typer.echo(f"{count} files of evidence examined" if kept else "the evidence lies with the run's artifacts")
        typer.echo(f"signature: {signature}")
        if outcome is None:
            typer.echo(f"claims were not examined again: {why_not}")
        else:
            same = sum(one.identical for one in outcome.claims)
            typer.echo(f"{len(outcome.claims)} claims examined again, {same} identical to the last digit")
    if not problems and outcome is None and not digests_only and not signature.startswith("holds"):
        problems = [f"nothing vouches for it: it is not signed, and its claims were not examined again: {why_not}"]
    if problems:
        raise ArtifactError(f"{case} does not hold: {'; '.join(problems)}")


def _keeps_evidence(case: Path) -> bool:
    """The folder of a registered version holds the signed case without the files it cites."""
    from loomrl.promotion.envelope import ENVELOPE
    from loomrl.safety.case.document import case_file

    folder = case_file(case).parent
    return not (folder / ENVELOPE).is_file() or (folder / "evidence").is_dir()


def _signature(case: Path, problems: list[str]) -> str:
    """What there is to say of the signature; one that does not hold is a problem."""
    from loomrl.errors import ArtifactError
    from loomrl.promotion.envelope import verify
    from loomrl.safety.case.document import case_file

    folder = _signed(case_file(case))
    if folder is None:
        return "none found; a case is signed when its version is registered"
    try:
        statement, _ = verify(folder)
    except ArtifactError as error:
        problems.append(str(error))
        return "does not hold"
    return f"holds, of {statement.policy}, run {statement.run_id}, {statement.created}"


def _signed(case: Path) -> Path | None:
    """The folder of a version with this case: its own, or one of those that were fetched from the registry."""
    from loomrl.promotion.envelope import CASE, ENVELOPE
    from loomrl.system.files import sha256_file
    from loomrl.system.home import home

    if (case.parent / ENVELOPE).is_file():
        return case.parent
    digest = sha256_file(case)
    versions = sorted((home() / "versions").glob(f"*/*/{ENVELOPE}"))
    return next((one.parent for one in versions if sha256_file(one.with_name(CASE)) == digest), None)


def _examined_again(case: Path, config: Path | None) -> tuple[Any, str | None]:
    """The claims beside what came out this time, or why they could not be examined."""
    from loomrl.errors import ConfigError
    from loomrl.runs.config import load_config
    from loomrl.safety.case.document import case_file
    from loomrl.safety.rerun import rerun
    from loomrl.system.home import project_root

    beside = case_file(case).resolve().parent.parent
    folders = [beside / stage for stage in ("environment", "training", "evaluation")]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        return None, f"there is no {missing[0]}"
    if config is None:
        try:
            config = project_root() / "configs" / f"{beside.name}.yaml"
        except ConfigError as error:
            return None, f"{error}, or name the policy's config by --config"
        if not config.is_file():
            return None, f"there is no {config}; name the policy's config by --config"
    return rerun(case, load_config(config).safety, *folders), None


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
    evaluation: Annotated[
        Path | None, typer.Option(help="The evaluation's folder; by default `evaluation` beside the case's folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play a claim's failure again. Exit code 3 when it does not come back."""
    from loomrl.safety.case.document import case_file
    from loomrl.safety.replay import replay as play_again

    beside = case_file(case).resolve().parent.parent
    folders = (
        environment or beside / "environment",
        policy or beside / "training",
        evaluation or beside / "evaluation",
    )
    print_replayed(play_again(case, claim, *folders), as_json)


@app.command()
def controls(case: CaseArgument, as_json: AsJson = False) -> None:
    """List the controls of standards with their evidence in a case, or the command that shows them in operation."""
    from loomrl.safety.case.document import read_case
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
        print_json(listed)
        return
    rows = [[one["control"], ", ".join(one["evidence"]) or one["operation"] or "nothing"] for one in listed]
    print_table(["control", "shown by"], rows)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a safety case."""
    from loomrl.safety.case.document import schema_bytes

    typer.echo(schema_bytes().decode(), nl=False)


@app.command()
def checks(as_json: AsJson = False) -> None:
    """List the safety checks found in this installation, with the settings each accepts."""
    from loomrl.safety.registry import find_checks

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
        print_json(found)
        return
    print_table(["check", "stage", "settings"], [[c["name"], c["stage"], _settings(c["settings"])] for c in found])


def _settings(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _verdict(claim: Any) -> str:
    """The verdict, and why the claim is not counted, or would not be if it held."""
    from loomrl.safety.case.tally import counts

    verdict = str(claim.verdict).removeprefix("statistically_")
    if claim.label is None:
        return verdict
    kinds = {
        "repeats": f"repeats {claim.label.claim}",
        "cannot_be_false": "cannot be false",
        "never_broken": "never seen false",
        "record": "a record",
    }
    return f"{verdict}; {'counted' if counts(claim) else 'not counted'}: {kinds[claim.label.kind]}"


def _print_claims(case: Any) -> None:
    from loomrl.safety.case.tally import tally

    rows = []
    for claim in case.claims:
        name = claim.id if claim.mandatory else f"{claim.id} (optional)"
        rows.append([name, _verdict(claim), claim.finding])
    print_table(["claim", "verdict", "finding"], rows)
    for claim in case.claims:
        if claim.counterexample:
            typer.echo(f"{claim.id}: {claim.counterexample.description}")
            typer.echo(f"  replay: {claim.counterexample.replay_command}")
    typer.echo(f"{tally(case.claims)}")
    typer.echo(f"gate: {'passed' if case.decision.passed else 'blocked'}: {case.decision.reason}")

"""`loomrl report`."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    app.command("report")(report)


def report(
    run: Annotated[str | None, typer.Argument(help="Run id; the newest run if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of the page's path.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the report again, also where it exists.")] = False,
) -> None:
    """The evidence report of a run: one page that works offline, and the same facts as JSON."""
    from loomrl.errors import ConfigError
    from loomrl.runs.report.build import DATA, PAGE, build_report, is_current
    from loomrl.storage.run_record import list_runs, read_run, run_folder
    from loomrl.system.home import project_root

    if run is None:
        newest = next(iter(list_runs()), None)
        if newest is None:
            raise ConfigError("there is no run to report on; start one with `loomrl run configs/POLICY.yaml`")
        run = newest.run_id
    record = read_run(run)
    page = run_folder(record.run_id) / PAGE
    if rebuild or not is_current(record.run_id):
        page = build_report(record.run_id, project_root())
    if as_json:
        typer.echo(page.with_name(DATA).read_text(), nl=False)
    else:
        typer.echo(str(page))
    if open_page:
        typer.launch(page.as_uri())

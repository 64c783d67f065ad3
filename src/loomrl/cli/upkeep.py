"""`loomrl gc` and `loomrl backup`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loomrl.cli.output import AsJson, print_json, table_of

if TYPE_CHECKING:
    from loomrl.storage.upkeep.backup import BackupReport


_MOST_SHOWN = 50  # items


def register(app: typer.Typer) -> None:
    """Add both commands to the top level."""
    app.command("gc")(gc)
    app.command("backup")(backup)


def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed; without it nothing is removed.")] = False,
    days: Annotated[
        int,
        typer.Option("--days", min=0, help="Unfinished trainings' checkpoints and run leftovers: at least this old."),
    ] = 7,
    audit_days: Annotated[
        int | None,
        typer.Option(
            "--audit-days", min=0, help="Also decisions this old of versions that hold no alias; never without it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Free old checkpoints, restored sources, run leftovers, cache entries and audit segments that nothing needs."""
    from loomrl.storage.upkeep.gc import find_garbage, quiet_project, remove
    from loomrl.system.terminal import PlainConsole

    with quiet_project():
        found = find_garbage(days, audit_days)
        if yes:
            remove(found)
    total = sum(item.num_bytes for item in found)
    if as_json:
        items = [item.to_json() for item in found]
        print_json({"removed": yes, "num_bytes": total, "items": items})
        return
    console, columns = PlainConsole(), ("kind", "path", "size", "why nothing needs it")
    if found:
        rows = [(item.kind, item.path, _size(item.num_bytes), item.reason) for item in found[:_MOST_SHOWN]]
        console.print(table_of(columns, rows), highlight=False)
    if len(found) > _MOST_SHOWN:
        console.print(f"... and {len(found) - _MOST_SHOWN} more; --json lists all", highlight=False)
    done = f"removed {len(found)} items, {_size(total)} freed" if yes else f"{_size(total)} could be freed: add --yes"
    console.print(done if found else "nothing to remove", highlight=False)


def backup(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Copy what cannot be rebuilt: databases, registered versions, audit logs, keys, run records. Verified."""
    from loomrl.errors import ArtifactError
    from loomrl.storage.upkeep.backup import back_up

    report = back_up(folder)
    if as_json:
        print_json(report.to_json())
    else:
        _print_backup(report)
    if report.damaged:
        raise ArtifactError(f"{report.folder} was made, but the original is damaged: " + "; ".join(report.damaged))


def _print_backup(report: "BackupReport") -> None:
    for note in report.notes:
        typer.echo(f"note: {note}")
    typer.echo(
        f"{report.num_files} files, {_size(report.num_bytes)}, {report.num_versions} versions, verified, in "
        f"{report.folder}; to restore: cp -a {report.folder}/. LOOMRL_HOME"
    )


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("unreachable")

"""`loomrl keys`: keys that encrypt what was observed."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Keys that encrypt trajectories, evidence and checkpoints.", no_args_is_help=True)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="ID", help="What the key is called in files it encrypts.")],
) -> None:
    """Print a fresh key, as LOOMRL_DATA_KEYS and the file of LOOMRL_DATA_KEYS_FILE take it."""
    from loomrl.encryption import new_entry

    typer.echo(new_entry(name))


@app.command()
def decrypt(
    file: Annotated[Path, typer.Argument(help="An encrypted file.")],
    output: Annotated[Path, typer.Option(help="Where its plain content goes.")],
) -> None:
    """Write a file's plain content somewhere else."""
    from loomrl.encryption import read_private
    from loomrl.errors import ArtifactError
    from loomrl.files import write_atomic

    try:
        data = read_private(file)
    except OSError as error:
        raise ArtifactError(f"cannot read {file}: {error.strerror}") from error
    write_atomic(output, data)

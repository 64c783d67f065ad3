"""`loomrl keys`: keys that encrypt what was observed, keys that sign, keys that are trusted, and logins."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Keys that encrypt, keys that sign, keys that are trusted; logins of servers.", no_args_is_help=True
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="ID", help="What the key is called in files it encrypts.")],
) -> None:
    """Print a fresh key that encrypts what was observed, as LOOMRL_DATA_KEYS and LOOMRL_DATA_KEYS_FILE take it."""
    from loomrl.system.security.encryption import new_entry

    typer.echo(new_entry(name))


@app.command()
def decrypt(
    file: Annotated[Path, typer.Argument(help="An encrypted file.")],
    output: Annotated[Path, typer.Option(help="Where its plain content goes.")],
) -> None:
    """Write the plain content of an encrypted file to another file."""
    from loomrl.errors import ArtifactError
    from loomrl.system.files import write_atomic
    from loomrl.system.security.encryption import read_private

    try:
        data = read_private(file)
    except OSError as error:
        raise ArtifactError(f"cannot read {file}: {error.strerror}") from error
    write_atomic(output, data)


@app.command()
def credentials() -> None:
    """Print fresh logins of a Prefect and an MLflow server, as `kubectl create secret --from-env-file` reads them."""
    from loomrl.system.security.credentials import generate, to_env

    typer.echo(to_env(generate()), nl=False)


@app.command()
def signing() -> None:
    """Show what this installation signs with; keys that are missing are made."""
    from loomrl.system.security.signing_keys import ED25519, ELLIPTIC, key_id, private_key, private_path

    for kind in (ED25519, ELLIPTIC):
        identity = key_id(private_key(kind).public_key())
        typer.echo(f"{kind.signs:<13} {identity}  {kind.algorithm}  {private_path(kind)}")


@app.command()
def trusted() -> None:
    """List the public keys whose signatures are trusted here."""
    from loomrl.system.security.signing_keys import ED25519, ELLIPTIC
    from loomrl.system.security.signing_keys import trusted as trusted_keys

    for kind in (ED25519, ELLIPTIC):
        for identity, key in trusted_keys(kind).items():
            typer.echo(f"{kind.signs:<13} {identity}  {key.path}")


@app.command()
def trust(
    file: Annotated[Path, typer.Argument(help="A public key, from another machine's LOOMRL_HOME/keys/*.pub.pem.")],
) -> None:
    """Trust what a key signs from now on: on machines that only verify, and for a colleague's key."""
    from loomrl.system.security.signing_keys import trust as trust_key

    typer.echo(f"trusted: {trust_key(file)}")

"""The command line: `loomrl`. Each room offers its own commands; what they need is imported when they run."""

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from loomrl.cli import certified as certified_commands
from loomrl.cli import comparison as comparison_commands
from loomrl.cli import report as report_commands
from loomrl.cli import serving as serving_commands
from loomrl.cli import upkeep as upkeep_commands
from loomrl.cli.environment import app as environment_app
from loomrl.cli.inference import app as engine_app
from loomrl.cli.model_checking import app as model_app
from loomrl.cli.promotion import app as policy_app
from loomrl.cli.safety import app as safety_app
from loomrl.cli.trajectory import app as hub_app
from loomrl.errors import LoomRLError
from loomrl.storage.upkeep.keys import app as keys_app

app = typer.Typer(
    name="loomrl",
    help="Take reinforcement-learning policies to production.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(environment_app, name="env")
app.add_typer(policy_app, name="policy")
app.add_typer(safety_app, name="safety")
app.add_typer(model_app, name="model")
app.add_typer(keys_app, name="keys")
app.add_typer(hub_app, name="hub")
app.add_typer(engine_app, name="engine")
serving_commands.register(app)
comparison_commands.register(app)
report_commands.register(app)
certified_commands.register(app)
upkeep_commands.register(app)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A file in configs/, for example configs/cartpole.yaml.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
) -> None:
    """Run a policy's life cycle: environment, training, evaluation, safety, export, shadow, promotion."""
    from loomrl.errors import ConfigError
    from loomrl.runs.config import load_config, parse_overrides
    from loomrl.system.home import home, project_root

    load_config(config, parse_overrides(settings or []))
    root = project_root(config.resolve().parent)
    if config.resolve().parent != root / "configs":
        raise ConfigError(f"{config} is not in {root / 'configs'}; a policy is a file there and a name in params.yaml")
    home()  # writable, or said so
    command = [sys.executable, "-m", "flows.lifecycle", config.stem]
    for setting in settings or []:
        command += ["--set", setting]
    raise typer.Exit(_run(command, root))


def _run(command: list[str], root: Path) -> int:
    """The command's exit code; 3 where a signal ended it, for that is no gate's refusal."""
    process = subprocess.Popen(command, cwd=root)
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else LoomRLError.exit_code
        except KeyboardInterrupt:
            continue  # the flow got it too: it writes its record and ends


@app.command()
def version() -> None:
    """Print the version of the installed loomrl."""
    from loomrl import __version__

    typer.echo(__version__)


def main() -> None:
    """Entry point of `loomrl`. An error of LoomRL is printed without traceback and ends with its own exit code, any
    other with its traceback and the exit code 3.
    """
    try:
        app()
    except LoomRLError as error:
        typer.secho(f"{type(error).__name__}: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 - an exit code of 1 would say that a gate refused
        traceback.print_exc()
        sys.exit(LoomRLError.exit_code)

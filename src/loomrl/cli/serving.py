"""`loomrl serve`, and the commands of those who read its log (`cli.audit`) or operate it (`cli.orders`)."""

import typer

from loomrl.cli import orders as operator_commands
from loomrl.cli.audit import audit_app
from loomrl.serving.command import serve


def register(app: typer.Typer) -> None:
    """Add `serve`, `audit` and the commands of operators to the top level."""
    app.command("serve")(serve)
    app.add_typer(audit_app, name="audit")
    operator_commands.register(app)

"""`python -m loomrl.serving --policy NAME ...`: as `loomrl serve`, without what other commands import."""

import typer

from loomrl.serving.command import serve
from loomrl.system.http.options import run_as_module

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(serve)
    run_as_module(app, "serve", "loomrl.serving")

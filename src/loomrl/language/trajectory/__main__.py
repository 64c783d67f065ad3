"""`python -m loomrl.language.trajectory serve ...`: as `loomrl hub serve`, without what other commands import."""

from loomrl.cli.trajectory import app
from loomrl.system.http.options import run_as_module

if __name__ == "__main__":
    run_as_module(app, "hub", "loomrl.language.trajectory")

"""`python -m loomrl.language.inference serve ...`: as `loomrl engine serve`, without what other commands import."""

from loomrl.cli.inference import app
from loomrl.system.http.options import run_as_module

if __name__ == "__main__":
    run_as_module(app, "engine", "loomrl.language.inference")

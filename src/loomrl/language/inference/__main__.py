"""`python -m loomrl.language.inference serve ...`: as `loomrl engine serve`, without what other commands import."""

import sys

from loomrl.cli.inference import app
from loomrl.errors import LoomRLError

if __name__ == "__main__":
    try:
        app(prog_name="python -m loomrl.language.inference")
    except LoomRLError as error:
        print(f"engine: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

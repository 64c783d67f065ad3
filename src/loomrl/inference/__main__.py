"""`python -m loomrl.inference serve ...`: as `loomrl engine serve`, without what other commands import."""

import sys

from loomrl.errors import LoomRLError
from loomrl.inference.commands import app

if __name__ == "__main__":
    try:
        app(prog_name="python -m loomrl.inference")
    except LoomRLError as error:
        print(f"engine: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

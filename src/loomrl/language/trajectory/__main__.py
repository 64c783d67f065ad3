"""`python -m loomrl.language.trajectory serve ...`: as `loomrl hub serve`, without what other commands import."""

import sys

from loomrl.cli.trajectory import app
from loomrl.errors import LoomRLError

if __name__ == "__main__":
    try:
        app(prog_name="python -m loomrl.language.trajectory")
    except LoomRLError as error:
        print(f"hub: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

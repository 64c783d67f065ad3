"""`python -m loomrl.trajectory serve ...`: as `loomrl hub serve`, without what other commands import."""

import sys

from loomrl.errors import LoomRLError
from loomrl.trajectory.commands import app

if __name__ == "__main__":
    try:
        app(prog_name="python -m loomrl.trajectory")
    except LoomRLError as error:
        print(f"hub: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

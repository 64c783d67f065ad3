"""Tell the person at the terminal and the one at the Prefect UI the same thing."""

import sys

from prefect import get_run_logger


def say(message: str) -> None:
    """Print a line and log it as a warning of the run."""
    print(message, file=sys.stderr, flush=True)
    get_run_logger().warning(message)

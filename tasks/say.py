"""Tell the person at the terminal and the one at the Prefect UI the same thing."""

import sys

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_logger, get_run_logger


def say(message: str) -> None:
    """Print a line; inside a run, log it as a warning too."""
    print(message, file=sys.stderr, flush=True)
    in_run = FlowRunContext.get() or TaskRunContext.get()
    (get_run_logger() if in_run else get_logger("loomrl")).warning(message)

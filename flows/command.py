"""What `python -m flows.lifecycle` does on a command line: run once and print the table, or serve."""

import argparse
import os
import sys
from collections.abc import Callable

import httpx
from prefect import serve
from rich.console import Console
from rich.table import Table

from loomrl.config import parse_overrides
from loomrl.errors import ConfigError, LoomRLError, ServiceError
from loomrl.runs import RunRecord, list_runs, run_folder
from tasks.policies import PolicyName, policy_names
from tasks.run import mark_crashed_runs

STYLES = {"promoted": "green", "unchanged": "green", "waiting": "yellow"}


def main() -> None:
    """Run one life cycle, or serve the flows when no policy is named."""
    parser = argparse.ArgumentParser(prog="python -m flows.lifecycle")
    parser.add_argument("policy", nargs="?", help="a policy in params.yaml; without one the flows are served")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    arguments = parser.parse_args()
    sys.exit(exit_code(lambda: run_once(arguments.policy, arguments.set) if arguments.policy else serve_flows()))


def exit_code(command: Callable[[], None]) -> int:
    """Call a command; print an error of ours and return its exit code."""
    try:
        check_prefect_server()
        command()
    except LoomRLError as error:
        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: {error}", highlight=False, soft_wrap=True)
        return error.exit_code
    return 0


def check_prefect_server() -> None:
    """Say at once when the Prefect server that is configured cannot be reached."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return
    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=10).raise_for_status()
    except httpx.HTTPError as error:
        raise ServiceError(
            f"the Prefect server at PREFECT_API_URL={url} does not answer ({error}); start it with `make up`, or unset "
            "PREFECT_API_URL to run without a server"
        ) from error


def run_once(policy: str, settings: list[str]) -> None:
    """One life cycle of one policy, its table at the end."""
    from flows.lifecycle import lifecycle

    if policy not in policy_names():
        known = ", ".join(policy_names())
        raise ConfigError(f"{policy!r} is not in params.yaml; policies there: {known}; add its name to the list")
    before = {record.run_id for record in list_runs(policy)}
    try:
        lifecycle(PolicyName(policy), parse_overrides(settings))
    except LoomRLError as error:
        if _print_new(policy, before):
            sys.exit(error.exit_code)  # the table says why
        raise
    _print_new(policy, before)


def _print_new(policy: str, before: set[str]) -> bool:
    """Print the table of the run that was recorded since; False when none was."""
    new = [record for record in list_runs(policy) if record.run_id not in before and record.finished]
    for record in new:
        print_table(record)
    return bool(new)


def print_table(record: RunRecord) -> None:
    """The seven stages with times and verdicts, the outcome, the champion and the report."""
    console = Console()
    table = Table(title=f"{record.policy}: life cycle {record.run_id}", title_justify="left")
    for column, justify in (("stage", "left"), ("status", "left"), ("seconds", "right"), ("verdict", "left")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for stage in record.stages:
        table.add_row(stage.name, stage.status, f"{stage.seconds:.1f}", stage.verdict)
    console.print(table)
    style = STYLES.get(record.state, "red")
    console.print(f"[bold {style}]{record.state}[/]: {record.message}", highlight=False, soft_wrap=True)
    console.print(f"champion: {champion(record)}", highlight=False)
    console.print(f"report: {run_folder(record.run_id) / 'report.html'}", highlight=False, soft_wrap=True)


def champion(record: RunRecord) -> str:
    """Who acts after this run."""
    version = record.version if record.state in ("promoted", "unchanged") else record.champion_before
    return f"{record.policy} version {version}" if version else "none yet"


def serve_flows() -> None:
    """Serve the flows to the Prefect server; runs are triggered from its UI, its API or a schedule."""
    from flows.lifecycle import lifecycle
    from flows.rollback import rollback

    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError("serving needs a Prefect server: start one with `make up` and set PREFECT_API_URL")
    mark_crashed_runs()
    deployments = [flow.to_deployment(flow.name) for flow in (lifecycle, rollback)]
    serve(*deployments)  # type: ignore[arg-type]  # no coroutines: these flows are synchronous

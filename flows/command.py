"""What `python -m flows.lifecycle` does on a command line: run once and print the table, or serve."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
from prefect import Flow, serve
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL
from rich.markup import escape
from rich.table import Table

from loomrl.errors import ConfigError, LoomRLError, ServiceError
from loomrl.runs import preflight
from loomrl.runs.config import load_config, parse_overrides
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.storage.run_record import RunRecord, read_run, run_folder
from loomrl.system.home import config_file, project_root
from loomrl.system.security.credentials import credentials_path
from loomrl.system.terminal import PlainConsole
from tasks.closing import mark_crashed_runs
from tasks.policies import PolicyName, policy_names
from tasks.run import overrides_from_command

STYLES = {"promoted": "green", "unchanged": "green", "waiting": "yellow"}


def main(lifecycle: Flow[..., str], *others: Flow[..., Any]) -> None:
    """Run one life cycle, or serve all flows when no policy is named."""
    parser = argparse.ArgumentParser(prog="python -m flows.lifecycle")
    parser.add_argument("policy", nargs="?", help="a policy in params.yaml; without one the flows are served")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    arguments = parser.parse_args()
    if arguments.policy:
        sys.exit(exit_code(lambda: run_once(lifecycle, arguments.policy, arguments.set)))
    sys.exit(exit_code(lambda: serve_flows(lifecycle, *others)))


def exit_code(command: Callable[[], None]) -> int:
    """Call a command; print what went wrong, once, and return the exit code that says of which kind it was."""
    console = PlainConsole(stderr=True)
    try:
        check_prefect_server()
        command()
    except LoomRLError as error:
        if error.run_id is None or not _print_run(error.run_id):
            console.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]: run the same command again; finished stages are kept")
        return LoomRLError.exit_code
    except Exception:  # noqa: BLE001 - whatever it is, it is no gate's refusal
        console.print_exception()
        return LoomRLError.exit_code
    return 0


def check_prefect_server() -> None:
    """Say at once when the Prefect server that is configured cannot be used; without one, prepare a temporary."""
    url = PREFECT_API_URL.value()
    if not url:
        from flows.temporary_server import use_temporary_server  # half of Prefect, which a configured server spares

        use_temporary_server()
        return
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
        needs_login = error is None and _needs_login(client)
    if error is not None:
        raise ServiceError(
            f"the Prefect server at PREFECT_API_URL={url} does not answer ({error}); start it with `make up`, or unset "
            "PREFECT_API_URL to run without a server"
        )
    if needs_login:
        raise ServiceError(
            f"the Prefect server at PREFECT_API_URL={url} needs a login: set PREFECT_API_AUTH_STRING; "
            f"that of `make up` is in {credentials_path()}"
        )


def _needs_login(client: SyncPrefectClient) -> bool:
    """Whether the server refuses this process's requests; its health check is public."""
    try:
        client.api_version()
    except httpx.HTTPStatusError as error:
        return error.response.status_code == httpx.codes.UNAUTHORIZED
    return False


def run_once(lifecycle: Flow[..., str], policy: str, settings: list[str]) -> None:
    """One life cycle of one policy, its table at the end."""
    name, overrides = known_policy(policy), parse_overrides(settings)
    preflight.check(load_config(config_file(policy), overrides), project_root())  # before Prefect starts an API
    with overrides_from_command():
        run_id = lifecycle(name, overrides)
    _print_run(run_id)


def known_policy(policy: str) -> PolicyName:
    """The policy of that name in `params.yaml`.

    Raises:
        ConfigError: when there is none; names those there are.
    """
    if policy not in policy_names():
        known = ", ".join(policy_names())
        raise ConfigError(f"{policy!r} is not in params.yaml; policies there: {known}; add its name to the list")
    return PolicyName(policy)


def _print_run(run_id: str) -> bool:
    """Print a run's table; False where it has none yet."""
    record = read_run(run_id)
    if record.finished:
        print_table(record)
    return bool(record.finished)


def print_table(record: RunRecord) -> None:
    """The seven stages with times and verdicts, the outcome, the champion and the report."""
    console = PlainConsole()
    table = Table(title=f"{record.policy}: life cycle {record.run_id}", title_justify="left")
    for column, justify in (("stage", "left"), ("status", "left"), ("seconds", "right"), ("verdict", "left")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for stage in record.stages:
        table.add_row(stage.name, stage.status, f"{stage.seconds:.1f}", escape(stage.verdict))
    console.print(table)
    style = STYLES.get(record.state, "red")
    console.print(f"[bold {style}]{record.state}[/]: {escape(record.message)}", highlight=False, soft_wrap=True)
    console.print(f"champion: {champion(record.policy)}", highlight=False)
    console.print(f"report: {run_folder(record.run_id) / 'report.html'}", highlight=False, soft_wrap=True)


def print_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """A table of rows that have the same columns; nothing where there are no rows."""
    if rows:
        table = Table(*rows[0], title=title, title_justify="left")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row.values()))
        PlainConsole().print(table)


def champion(policy: str) -> str:
    """Who acts now."""
    version = Registry().aliases(policy).get(CHAMPION)
    return f"{policy} version {version}" if version else "none yet"


def serve_flows(*flows: Flow[..., Any]) -> None:
    """Serve the flows to the Prefect server; runs are triggered from its UI, its API or a schedule."""
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError("serving needs a Prefect server: start one with `make up` and set PREFECT_API_URL")
    mark_crashed_runs()
    deployments = [flow.to_deployment(flow.name) for flow in flows]
    serve(*deployments)  # type: ignore[arg-type]  # no coroutines: these flows are synchronous

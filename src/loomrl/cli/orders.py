"""`loomrl override`, `plan`, `kill` and `tokens`: what operators do to running servers.

Without `--server` a command writes the file that this host's servers follow, and LoomDB, which tells other hosts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from loomrl.cli.output import AsJson
from loomrl.system.plain import on_one_line
from loomrl.system.schema import Document

if TYPE_CHECKING:
    from loomrl.serving.controls.controls import Controls

D = TypeVar("D", bound=Document)
override_app = typer.Typer(help="Take decisions out of a policy's hands.", no_args_is_help=True)
plan_app = typer.Typer(help="Who decides besides the champion: split, challengers, fallback.", no_args_is_help=True)
kill_app = typer.Typer(help="Have the fallback decide everything that no override does.", no_args_is_help=True)
tokens_app = typer.Typer(help="Tokens of those who use a server.", no_args_is_help=True)
_LOOMDB_SECONDS = 2  # that a locked or silent database is waited for: a person stands by

Policy = Annotated[str, typer.Option("--policy", help="The policy's name.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the audit log.")]
Person = Annotated[str | None, typer.Option(help="Who; default: the user's name.")]
Server = Annotated[
    str | None, typer.Option("--server", help="URL of a running server; without it the file servers follow is changed.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the top level."""
    app.add_typer(override_app, name="override")
    app.add_typer(plan_app, name="plan")
    app.add_typer(kill_app, name="kill")
    app.add_typer(tokens_app, name="tokens")


# --- overrides --------------------------------------------------------------------------------------------------


@override_app.command("set")
def set_override(
    policy: Policy,
    reason: Reason,
    action: Annotated[str | None, typer.Option(help="Pin this action, as JSON: 0, or [0.1, -0.3].")] = None,
    version: Annotated[str | None, typer.Option(help="Pin this version.")] = None,
    fallback: Annotated[bool, typer.Option("--fallback", help="Pin the plan's fallback.")] = False,
    agent: Annotated[str | None, typer.Option(help="For this agent; for all if left out.")] = None,
    person: Person = None,
    expires_in: Annotated[float | None, typer.Option(min=0.001, help="Seconds; until cleared if left out.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Pin an action, a version or the fallback, until it expires or is cleared, also over a restart."""
    fields = {"reason": reason, "person": person or _user(), "agent_id": agent, "fallback": fallback}
    fields |= {"action": None if action is None else _parse_action(action), "version": version}
    if server is not None:
        from loomrl.serving.client import PolicyClient

        lifetime = {} if expires_in is None else {"expires_in_seconds": expires_in}
        with PolicyClient(server) as client:
            set_one = client.set_override(**fields, **lifetime)
    else:
        set_one = _set_here(policy, fields, expires_in)
    _tell_not_loaded(set_one)
    if as_json:
        _print_json(set_one)
    elif server is not None:
        typer.echo(f"override {set_one['id']} is in force on {server}")
    else:
        typer.echo(f"override {set_one['id']} is written; running servers follow within a second")


@override_app.command("clear")
def clear_override(
    policy: Policy,
    override_id: Annotated[str | None, typer.Argument(help="An override's id; all if left out.")] = None,
    reason: Reason = "lifted by a command",
    server: Server = None,
) -> None:
    """Lift one override, or all: the policy decides again."""
    if server is not None:
        from loomrl.serving.client import PolicyClient

        with PolicyClient(server) as client:
            lifted = client.clear_override(override_id)
        when = f"on {server}"
    else:
        controls = _shared(policy)
        lifted = [override.id for override in controls.clear_overrides(override_id, _actor(), reason)]
        _share(controls)
        when = "in the file; running servers follow within a second"
    typer.echo(f"lifted: {', '.join(lifted) or 'none'} ({when})")


@override_app.command("list")
def list_overrides(policy: Policy, as_json: AsJson = False) -> None:
    """List the overrides that are in force, one a line."""
    active = _shared(policy).orders.active_overrides()
    if as_json:
        _print_json({"overrides": [override.to_json() for override in active]})
        return
    for override in active:
        typer.echo(on_one_line(f"{override.id}  {override.describe()}"))
    if not active:
        typer.echo("no override is in force")


def _set_here(policy: str, fields: Mapping[str, Any], expires_in: float | None) -> dict[str, Any]:
    import time

    from loomrl.serving.controls.controls import Controls
    from loomrl.serving.controls.overrides import Override

    now = time.time()
    override = _validated(Override, {**fields, "created": now, "expires": expires_in and now + expires_in})
    controls = Controls(policy)
    controls.set_override(override, _actor())  # first: an emergency waits for no database
    _share(controls)
    return override.to_json()


def _parse_action(text: str) -> Any:
    from loomrl.errors import ConfigError

    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"--action {text[:200]!r} is not JSON; examples: 0, [0.1, -0.3]") from error


# --- the plan ---------------------------------------------------------------------------------------------------


@plan_app.command("show")
def show_plan(policy: Policy, server: Server = None, as_json: AsJson = False) -> None:
    """The plan in force, and whether the kill switch is on."""
    found = _read_plan(policy, server)
    if as_json:
        _print_json(found)
        return
    plan, switch = found["plan"], found["kill_switch"]
    shares = ", ".join(f"{share:g} to version {version}" for version, share in plan["split"].items())
    for line in (
        f"split:       {shares or 'none, the champion decides for all agents'}",
        f"challengers: {', '.join(plan['challengers']) or 'only that of the registry'}",
        f"fallback:    {_fallback_text(plan['fallback'])}",
        "kill switch: " + ("off" if switch is None else f"ON, by {switch['person']}: {switch['reason']}"),
    ):
        typer.echo(on_one_line(line))


@plan_app.command("split")
def split(
    policy: Policy,
    version: Annotated[str, typer.Option(help="The version that gets a share of the agents.")],
    fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of all agents; 0 ends its share.")],
    reason: Reason,
    experiment: Annotated[
        str | None, typer.Option(help="A name; another one than before deals all agents anew.")
    ] = None,
    person: Person = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Give a version a share of the agents. Each stays where it is, but for those the share gains or gives back."""

    def change(plan: dict[str, Any]) -> dict[str, Any]:
        shares = {name: share for name, share in {**plan["split"], version: fraction}.items() if share}
        return {"split": shares, "experiment": experiment or plan["experiment"]}

    _change_plan(policy, server, change, person, reason, as_json)


@plan_app.command("challengers")
def challengers(
    policy: Policy,
    reason: Reason,
    versions: Annotated[
        list[str] | None, typer.Argument(help="Versions; none: only the registry's challenger.")
    ] = None,
    person: Person = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Have these versions decide in shadow, besides the registry's challenger."""
    changes = {"challengers": versions or []}
    _change_plan(policy, server, lambda _: changes, person, reason, as_json)


@plan_app.command("fallback")
def fallback(
    policy: Policy,
    reason: Reason,
    action: Annotated[str | None, typer.Option(help="This action, as JSON: 0, or [0.1, -0.3].")] = None,
    version: Annotated[str | None, typer.Option(help="This version.")] = None,
    person: Person = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Say what decides where the policy must not or cannot; with neither action nor version, nothing does."""
    named = {"action": None if action is None else _parse_action(action), "version": version}
    changes = {"fallback": None if action is None and version is None else named}
    _change_plan(policy, server, lambda _: changes, person, reason, as_json)


def _read_plan(policy: str, server: str | None) -> dict[str, Any]:
    if server is not None:
        from loomrl.serving.client import PolicyClient

        with PolicyClient(server) as client:
            return client.plan()
    return _shared(policy).describe_plan()


def _change_plan(policy: str, server: str | None, change: Any, person: str | None, reason: str, as_json: bool) -> None:
    """Replace the plan by what `change` makes of it; refused where somebody else changed it meanwhile."""
    by = {"person": person or _user(), "reason": reason}
    if server is not None:
        from loomrl.serving.client import PolicyClient

        with PolicyClient(server) as client:
            found = client.plan()
            wanted = {**found["plan"], **change(found["plan"]), **by}
            found = client.set_plan(**wanted, revision=found["revision"])
    else:
        from loomrl.serving.controls.plan import Plan

        controls = _shared(policy)
        found = controls.describe_plan()
        plan = _validated(Plan, {**found["plan"], **change(found["plan"]), **by})
        controls.set_plan(plan, _actor(), found["revision"])
        _share(controls)
        found = controls.describe_plan()
    _tell_not_loaded(found)
    if as_json:
        _print_json(found)
    else:
        typer.echo(f"the plan is {_in_force(server)}")


def _in_force(server: str | None) -> str:
    return "written; running servers follow within a second" if server is None else f"in force on {server}"


def _fallback_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none"
    return f"action {found['action']}" if found["version"] is None else f"version {found['version']}"


# --- the kill switch --------------------------------------------------------------------------------------------


@kill_app.command("on")
def kill_on(policy: Policy, reason: Reason, person: Person = None, server: Server = None) -> None:
    """From now on the fallback decides; where none is set, nothing does: agents get 503."""
    _switch(policy, True, person or _user(), reason, server)


@kill_app.command("off")
def kill_off(policy: Policy, reason: Reason, person: Person = None, server: Server = None) -> None:
    """Take back the kill switch: the policy decides again."""
    _switch(policy, False, person or _user(), reason, server)


def _switch(policy: str, on: bool, person: str, reason: str, server: str | None) -> None:
    if server is not None:
        from loomrl.serving.client import PolicyClient

        with PolicyClient(server) as client:
            client.set_kill_switch(on, person, reason)
    else:
        from loomrl.serving.controls.controls import Controls
        from loomrl.serving.controls.plan import KillSwitch

        switch = _validated(KillSwitch, {"person": person, "reason": reason})
        controls = Controls(policy) if on else _shared(policy)  # who releases knows what; an emergency waits for nobody
        controls.set_kill_switch(switch if on else None, _actor(), reason)
        _share(controls)
    typer.echo(f"the kill switch of {policy} is turned {'on' if on else 'off'}: that is {_in_force(server)}")


# --- tokens -----------------------------------------------------------------------------------------------------


@tokens_app.command("new")
def new_token(
    name: Annotated[str, typer.Option(help="Its holder; the name stands in the audit log.")],
    role: Annotated[list[str], typer.Option(help="decide, observe or operate; may be repeated.")],
    file: Annotated[
        Path, typer.Option(envvar="LOOMRL_TOKENS_FILE", help="The servers' file of holders; the new one is added.")
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option(help="The only agent it decides for, or BEGINNING* for all of such names; may be repeated."),
    ] = None,
) -> None:
    """Print a fresh token, once: the file keeps its digest, and running servers follow the file."""
    from loomrl.system.http.tokens import add

    typer.echo(add(file, name, role, agent or ()))


# --- shared -----------------------------------------------------------------------------------------------------


def _shared(policy: str) -> "Controls":
    """This host's controls, with what other hosts have set."""
    from loomrl.serving.controls.controls import Controls

    controls = Controls(policy)
    _share(controls)
    return controls


def _share(controls: "Controls") -> None:
    """Exchange with LoomDB. Where that is out of reach this host goes its own way, and its servers do it later."""
    from loomrl.errors import LoomRLError
    from loomrl.storage.loomdb.database import LoomDB

    try:
        with LoomDB.open(wait_seconds=_LOOMDB_SECONDS) as database:
            controls.exchange(database)
    except LoomRLError as error:
        typer.echo(f"other hosts do not hear of it yet: {error}", err=True)


def _tell_not_loaded(answer: Mapping[str, Any]) -> None:
    for version, why in answer.get("not_loaded", {}).items():
        typer.echo(on_one_line(f"version {version} is not loaded yet: {why}"), err=True)


def _validated(kind: type[D], fields: Mapping[str, Any]) -> D:
    from pydantic import ValidationError

    from loomrl.errors import ConfigError

    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def _user() -> str:
    import getpass

    return getpass.getuser()


def _actor() -> str:
    return f"command {_user()}"


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, sort_keys=True))

"""`loomrl env`: register, unregister, check, snapshot, verify and restore environments."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomrl.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from loomrl.environment.config import EnvironmentConfig

app = typer.Typer(help="Register, check, snapshot, verify and restore environments.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(help="A policy's config file, a Gymnasium id, or a registered name.")]
Reference = Annotated[str, typer.Argument(help="A folder with a snapshot, or the digest of a kept one.")]
EntryPoint = Annotated[str | None, typer.Option(help="`module:Class` of an environment registered nowhere.")]
CodeFolder = Annotated[Path | None, typer.Option("--path", help="The folder that holds the module.")]
Version = Annotated[str | None, typer.Option(help="The version; default: the newest.")]


@app.command()
def register(
    name: Annotated[str, typer.Argument(help="How configs call it.")],
    entry_point: Annotated[str, typer.Argument(help="`module:Class`.")],
    version: Annotated[str, typer.Option(help="A version is immutable: change the code, change the version.")],
    max_episode_steps: Annotated[int | None, typer.Option(help="Where episodes are cut off.")] = None,
    reward_threshold: Annotated[float | None, typer.Option(help="The return that counts as a success.")] = None,
    kwargs: Annotated[str, typer.Option(help="The constructor's arguments, as a JSON object.")] = "{}",
    path: CodeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Register an environment in LoomDB, its source included."""
    from loomrl.environment.registry import register_environment

    record = register_environment(
        name, entry_point, version, max_episode_steps, reward_threshold, _json_object(kwargs), path
    )
    if as_json:
        print_json(record.to_json())
    else:
        typer.echo(f"{record.name} {record.version} is registered; source {record.source_digest[:12]}")


@app.command()
def unregister(
    name: Annotated[str, typer.Argument(help="As it was registered.")],
    version: Annotated[str, typer.Option(help="Which version.")],
    as_json: AsJson = False,
) -> None:
    """Take back a registration of which there is no snapshot."""
    from loomrl.environment.registry import unregister_environment

    record = unregister_environment(name, version)
    if as_json:
        print_json(record.to_json())
    else:
        typer.echo(f"{record.name} {record.version} is no longer registered")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List registered environments and recorded snapshots."""
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as database:
        environments, snapshots = database.list_environments(), database.list_snapshots()
    if as_json:
        print_json(
            {
                "environments": [record.to_json() for record in environments],
                "snapshots": [record.to_json() for record in snapshots],
            }
        )
        return
    rows = [[item.name, item.version, item.entry_point, item.source_digest[:12]] for item in environments]
    print_table(["name", "version", "entry point", "source"], rows, "Registered environments")
    rows = [[item.digest[:12], item.name, item.version, f"{item.created:%Y-%m-%d %H:%M}"] for item in snapshots]
    print_table(["digest", "name", "version", "recorded (UTC)"], rows, "Snapshots")


@app.command()
def snapshot(
    target: Target,
    entry_point: EntryPoint = None,
    path: CodeFolder = None,
    version: Version = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot, keep it under LOOMRL_HOME and record it in LoomDB."""
    import tempfile

    from loomrl.environment.snapshots.snapshot import take_snapshot
    from loomrl.environment.snapshots.store import store_snapshot

    config, project = _config(target, entry_point, path, version)
    with tempfile.TemporaryDirectory() as temporary:
        taken = take_snapshot(config, project, Path(temporary))
        kept = store_snapshot(Path(temporary))
    if as_json:
        print_json({**taken.to_json(), "folder": str(kept)})
    else:
        _print_snapshot(taken.to_json(), kept)


@app.command()
def show(reference: Reference, as_json: AsJson = False) -> None:
    """Show what a snapshot records: interface, code and sampled dynamics."""
    from loomrl.environment.snapshots.snapshot import load_snapshot
    from loomrl.environment.snapshots.store import find_snapshot

    folder = find_snapshot(reference)
    document = load_snapshot(folder).to_json()
    if as_json:
        print_json({**document, "folder": str(folder)})
    else:
        _print_snapshot(document, folder)


@app.command()
def verify(
    reference: Reference,
    config: Annotated[Path | None, typer.Option(help="The policy's config the snapshot belongs to.")] = None,
    path: CodeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed since a snapshot was taken; ends with 1 when something did."""
    from loomrl.environment.snapshots.store import find_snapshot
    from loomrl.runs.verify_snapshot import ASPECTS, verify_snapshot

    folder = find_snapshot(reference)
    chosen = None if config is None else _config(str(config), None, None, None)[0]
    report = verify_snapshot(folder, _project(), chosen or _with_code_in(folder, path))
    if as_json:
        print_json({**report.to_json(), "changed": report.changed, "unchanged": report.unchanged})
    else:
        rows = [[aspect, "\n".join(getattr(report, aspect)) or "unchanged"] for aspect in ASPECTS]
        print_table(["", "compared with now"], rows, f"{report.name} {report.version}, snapshot {report.digest[:12]}")
        for remark in report.remarks:
            typer.echo(remark)
    if not report.unchanged:
        raise typer.Exit(1)


@app.command()
def restore(
    reference: Reference,
    folder: Annotated[Path, typer.Argument(help="A folder to make; the code goes to its `source`.")],
    as_json: AsJson = False,
) -> None:
    """Copy a snapshot to a folder and unpack its source there."""
    from loomrl.environment.snapshots.store import copy_snapshot, find_snapshot
    from loomrl.environment.sources.source import ARCHIVE, extract_archive
    from loomrl.errors import ConfigError

    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a new folder")
    restored = copy_snapshot(find_snapshot(reference), folder)
    archive = (folder / ARCHIVE).read_bytes()
    extract_archive(archive, restored.source_digest, restored.source_roots, folder / "source")
    if as_json:
        print_json({"digest": restored.digest, "folder": str(folder)})
    else:
        typer.echo(f"{restored.spec.name} {restored.spec.version} ({restored.digest[:12]}) restored to {folder}")


@app.command()
def check(
    target: Target,
    entry_point: EntryPoint = None,
    path: CodeFolder = None,
    version: Version = None,
    as_json: AsJson = False,
) -> None:
    """Run the conformance suite; ends with 1 when it finds an error."""
    from loomrl.environment.check import check_environment
    from loomrl.environment.construct import construct_as_declared
    from loomrl.environment.resolve import resolve
    from loomrl.gym.check import check_domain
    from loomrl.gym.environment import DomainEnvironment

    config, project = _config(target, entry_point, path, version)
    env = construct_as_declared(resolve(config, project))
    findings = check_environment(env)
    if isinstance(env.unwrapped, DomainEnvironment):  # its tasks and its verifier are examined too
        findings += check_domain(env.unwrapped.domain)
    env.close()
    if as_json:
        print_json({"environment": config.id, "findings": [finding.to_json() for finding in findings]})
    elif not findings:
        typer.echo(f"{config.id} conforms")
    else:
        rows = [[finding.severity, finding.name, f"{finding.problem}\n{finding.fix}"] for finding in findings]
        print_table(["", "check", "what is wrong, and the fix"], rows, config.id)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def _config(
    target: str, entry_point: str | None, path: Path | None, version: str | None
) -> "tuple[EnvironmentConfig, Path]":
    from loomrl.environment.config import EnvironmentConfig
    from loomrl.errors import ConfigError
    from loomrl.runs.config import load_config

    if not target.endswith((".yaml", ".yml")):
        return EnvironmentConfig(id=target, version=version, entry_point=entry_point, path=path), Path.cwd()
    if entry_point or path or version:
        raise ConfigError("--entry-point, --path and --version go with an id; a config file says these itself")
    return load_config(Path(target)).environment, _project(Path(target).resolve().parent)


def _with_code_in(snapshot: Path, path: Path | None) -> "EnvironmentConfig | None":
    """A snapshot's own parameters with the code in a folder."""
    from loomrl.environment.config import EnvironmentConfig
    from loomrl.environment.snapshots.snapshot import load_snapshot

    if path is None:
        return None
    spec = load_snapshot(snapshot).spec
    limits = {"max_episode_steps": spec.max_episode_steps, "reward_threshold": spec.reward_threshold}
    fields = {"id": spec.name, "version": spec.version, "entry_point": spec.entry_point, "kwargs": spec.kwargs}
    return EnvironmentConfig.model_validate({**fields, **limits, "path": path.resolve()})


def _project(start: Path | None = None) -> Path:
    """The project around, or the working folder where there is none: environments need no project."""
    from loomrl.errors import ConfigError
    from loomrl.system.home import project_root

    try:
        return project_root(start)
    except ConfigError:
        return Path.cwd()


def _json_object(text: str) -> dict[str, Any]:
    from loomrl.errors import ConfigError

    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kwargs is not JSON: {error}; write for example '{{\"drift\": 0.2}}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--kwargs must be a JSON object, found {text}")
    return value


def _print_snapshot(document: dict[str, Any], folder: Path) -> None:
    spec, dynamics = document["spec"], document["dynamics"]
    rows = [
        ["digest", document["digest"]],
        ["entry point", spec["entry_point"]],
        ["kwargs", json.dumps(spec["kwargs"], sort_keys=True)],
        ["max episode steps", str(spec["max_episode_steps"])],
        ["reward threshold", str(spec["reward_threshold"])],
        ["observation", json.dumps(spec["observation"])],
        ["action", json.dumps(spec["action"])],
        ["source", f"{document['source_digest']} ({', '.join(document['source_roots'])})"],
        ["dependencies", ", ".join(f"{name} {version}" for name, version in document["dependencies"].items())],
        ["dynamics", f"{dynamics['exact']} ({dynamics['num_episodes']} episodes, {dynamics['num_steps']} steps)"],
        ["folder", str(folder)],
    ]
    print_table(["", "snapshot"], rows, f"{spec['name']} {spec['version']}")

"""`loomrl model`: finite models of environments, what a policy does in them, and shields."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.cli.output import AsJson, print_json

app = typer.Typer(help="Model checking: finite models, chains of policies, shields.", no_args_is_help=True)

Model = Annotated[
    Path, typer.Argument(help="A model in the PRISM language, or the folder of an environment's snapshot.")
]
PolicyFolder = Annotated[Path | None, typer.Option("--policy", help="The folder of the policy that chooses.")]
Constants = Annotated[
    list[str] | None, typer.Option("--constant", metavar="NAME=VALUE", help="A constant of the model; may be repeated.")
]


@app.command()
def check(
    model: Model,
    prop: Annotated[str, typer.Option("--property", help='PCTL, such as P<=0.01 [ F<=100 "crash" ].')],
    policy: PolicyFolder = None,
    constant: Constants = None,
    storm: Annotated[bool, typer.Option(help="Ask Storm for a second opinion (pip install 'loomrl[storm]').")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide a property. Ends with 1 when it does not hold, or lies too close to its limit to say."""
    from loomrl.environment.finite.prism.syntax import read_property, written_out
    from loomrl.safety.model_checking import pctl

    parsed, constants = read_property(prop), _constants(constant)
    chain, formulas = _chain(model, policy, constants)
    answer = pctl.check(chain, written_out(parsed, formulas))
    second = _second_opinion(model, policy, chain, prop, constants) if storm else None
    _show(answer, len(chain.states), len(chain.columns), second, as_json)
    if answer.holds is not True and (answer.relation is not None or answer.low is None):
        raise typer.Exit(1)


@app.command()
def export(
    model: Model,
    output: Annotated[Path, typer.Option(help="A folder for chain.prism, chain.tra, chain.sta, chain.lab, *.srew.")],
    policy: PolicyFolder = None,
    constant: Constants = None,
) -> None:
    """Write a chain in the PRISM language and in PRISM's explicit files."""
    from loomrl.environment.finite.written import prism_text, write_explicit
    from loomrl.system.files import write_atomic

    chain, _ = _chain(model, policy, _constants(constant))
    output.mkdir(parents=True, exist_ok=True)
    write_atomic(output / "chain.prism", prism_text(chain).encode())
    for path in (output / "chain.prism", *write_explicit(chain, output)):
        typer.echo(str(path))


@app.command()
def shield(
    snapshot: Annotated[Path, typer.Argument(help="The folder of an environment's snapshot.")],
    unsafe: Annotated[str, typer.Option(help='What must not be reached, such as "crash" or s=5|s=7.')],
    output: Annotated[Path, typer.Option(help="The file to write.")],
    tolerance: Annotated[float, typer.Option(help="Allow up to (1 + this) times the least risk.")] = 0.0,
) -> None:
    """Compute which actions are allowed in each state."""
    from loomrl.environment.finite.shielding import build_shield, states_where

    modelled = _modelled(snapshot, shielded=False)
    built = build_shield(modelled, states_where(unsafe, modelled.model.states, "--unsafe"), tolerance)
    built.save(output)
    typer.echo(f"{output}: {built.num_safe} of {len(built.risk)} states can be kept safe for ever")


def _constants(given: list[str] | None) -> dict[str, Any]:
    """Values as they are written: integers, reals, true and false."""
    import json

    from loomrl.errors import ConfigError

    found = {}
    for one in given or []:
        name, sign, text = one.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not sign or not isinstance(value, int | float):
            raise ConfigError(f"--constant {one!r}: write NAME=VALUE with an integer, a real number, true or false")
        found[name] = value
    return found


def _modelled(snapshot: Path, shielded: bool = True) -> Any:
    """The model of a snapshot's environment, behind its shield or without."""
    from dataclasses import replace

    from loomrl.environment.construct import construct
    from loomrl.environment.finite.of_environment import model_of
    from loomrl.environment.make import restored_definition

    definition = restored_definition(snapshot)
    env = construct(definition if shielded else replace(definition, shield=None))
    try:
        return model_of(env)
    finally:
        env.close()


def _chain(model: Path, policy: Path | None, constants: dict[str, Any]) -> tuple[Any, Any]:
    """The chain, and the formulas that the model's text defines."""
    from loomrl.environment.finite.prism.explore import build_model
    from loomrl.environment.finite.prism.syntax import read_program
    from loomrl.errors import ConfigError

    if model.is_dir():
        if policy is None:
            raise ConfigError(f"{model} is an environment's snapshot: --policy names the folder of who chooses in it")
        from loomrl.algorithms.policies.loading import load_policy
        from loomrl.safety.probing.probes import ask

        modelled = _modelled(model)
        return modelled.chain(ask(load_policy(policy), modelled.observations)), {}
    if not model.is_file():
        raise ConfigError(f"{model}: no such file or folder")
    if policy is not None:
        raise ConfigError("--policy needs the snapshot of the environment it was trained in, not a model's text")
    program = read_program(model.read_text(), str(model))
    return build_model(program, constants, name=str(model)).only_chain(), program.formulas


def _second_opinion(model: Path, policy: Path | None, chain: Any, prop: str, constants: dict[str, Any]) -> Any:
    import tempfile

    from loomrl.environment.finite.written import prism_text
    from loomrl.errors import ConfigError
    from loomrl.safety.model_checking.storm import ask_all

    if policy is None:
        return ask_all([(model, [prop], constants)])[0][0]
    if (chain.states.initial > 0.0).sum() > 1:
        raise ConfigError("--storm: the environment has several initial states, and Storm is asked about one")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.prism"
        path.write_text(prism_text(chain))
        return ask_all([(path, [prop], {})])[0][0]


def _show(answer: Any, num_states: int, num_transitions: int, second: Any, as_json: bool) -> None:
    if as_json:
        document = {
            "holds": answer.holds,
            "low": answer.low,
            "high": answer.high,
            "num_states": num_states,
            "num_transitions": num_transitions,
            "storm": second,
        }
        print_json(document)
        return
    verdict = {True: "true", False: "false", None: "open"}[answer.holds]
    if answer.relation is not None or answer.low is None:
        typer.echo(verdict)
    if answer.low is not None:
        typer.echo(f"between {answer.low!r} and {answer.high!r}")
    typer.echo(f"{num_states} states, {num_transitions} transitions")
    if second is not None:
        typer.echo(f"Storm: {second}")

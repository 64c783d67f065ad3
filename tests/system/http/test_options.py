"""Options of commands that serve: those of the settings, and the command's own."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, get_origin

import typer
from typer.testing import CliRunner

from loomrl.errors import ConfigError
from loomrl.serving.command import serve
from loomrl.serving.settings import ServerSettings
from loomrl.system.http.options import with_settings


@dataclass(frozen=True)
class Settings:
    name: Annotated[str, typer.Option(help="Whose.")]
    kept: dict[str, int]  # no option
    rate: Annotated[float, typer.Option(min=0, help="How often.")] = 2.0


def test_a_command_offers_its_own_options_and_those_of_its_settings() -> None:
    given: list[dict[str, Any]] = []
    app = typer.Typer()

    @app.command()
    @with_settings(Settings)
    def run(verbose: Annotated[bool, typer.Option("--verbose")] = False, **settings: Any) -> None:
        given.append({"verbose": verbose, **settings})

    assert CliRunner().invoke(app, ["--name", "a", "--verbose"]).exit_code == 0
    assert CliRunner().invoke(app, ["--name", "a", "--rate", "3"]).exit_code == 0
    assert given == [{"verbose": True, "name": "a", "rate": 2.0}, {"verbose": False, "name": "a", "rate": 3.0}]
    assert CliRunner().invoke(app, ["--name", "a", "--rate", "-1"]).exit_code == 2
    assert CliRunner().invoke(app, ["--rate", "1"]).exit_code == 2  # a name is needed


def test_all_settings_of_a_policy_server_but_two_are_options() -> None:
    left_out = {field.name for field in fields(ServerSettings) if get_origin(field.type) is not Annotated}
    assert left_out == {"folders", "tracking_uri"}


def test_a_wrong_exploration_is_refused_by_name() -> None:
    app = typer.Typer()
    app.command()(serve)
    result = CliRunner().invoke(app, ["--policy", "cartpole", "--explore", "epsilon"])
    assert isinstance(result.exception, ConfigError)
    assert "'epsilon' is not SETTING=VALUE" in str(result.exception)

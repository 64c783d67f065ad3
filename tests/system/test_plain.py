"""A reason or a name that holds orders for a terminal, or a line of its own, is only shown."""

import io
from pathlib import Path

from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.cli.orders import override_app, plan_app
from loomrl.serving.settings import ServerSettings
from loomrl.system.plain import on_one_line
from loomrl.system.terminal import PlainConsole
from tests.support.inside import Inside
from tests.support.policies import discrete_folder

EVIL = "x\x1b[2J\x1b]0;title\x07\nall is well \u202egnp \u0085 \u2028"
SHOWN = r"x\x1b[2J\x1b]0;title\x07\nall is well \u202egnp \x85 \u2028"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert on_one_line(EVIL) == SHOWN
    assert on_one_line("Grüße, 日本 – “ok”") == "Grüße, 日本 – “ok”"


def test_no_console_obeys_what_it_shows() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=200, color_system=None)
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(Text(EVIL))
    for shown in (EVIL, table, Tree(EVIL)):
        console.print(shown, markup=False)
    assert file.getvalue().count(r"x\x1b[2J") == 5
    assert all(one.isprintable() or one == "\n" for one in file.getvalue())


def test_an_operators_reason_does_nothing_to_the_terminal_of_who_looks(loomrl_home: Path, tmp_path: Path) -> None:
    told = {"person": EVIL, "reason": EVIL}
    with Inside(ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "policy")})) as server:
        assert server.ask("POST", "/override", {"action": 0, "agent_id": "a", **told}).status_code == 201
        assert server.ask("PUT", "/kill-switch", {"on": True, **told}).status_code == 200
    for app, command in (
        (override_app, ["list", "--policy", "cartpole"]),
        (plan_app, ["show", "--policy", "cartpole"]),
        (audit_app, ["show"]),
    ):
        output = CliRunner().invoke(app, command, color=True).output
        assert SHOWN in output, command
        assert not set(EVIL) - set(SHOWN) - {"\n"} & set(output)

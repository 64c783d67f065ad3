"""`loomrl report`."""

import json

import pytest
import typer
from typer.testing import CliRunner

from loomrl.cli.report import register
from loomrl.errors import ConfigError
from loomrl.storage.run_record import run_folder


@pytest.fixture
def app(project, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.chdir(project)
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return app


def run(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_prints_the_newest_runs_page(app, make_run) -> None:
    make_run(run_id="20261119-000000-aaaaaa")
    newest = make_run(run_id="20261120-000000-bbbbbb")
    page = run_folder(newest.run_id) / "report.html"
    assert run(app) == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>")


def test_json_is_one_document(app, make_run) -> None:
    record = make_run()
    document = json.loads(run(app, record.run_id, "--json"))
    assert document["run"]["run_id"] == record.run_id
    assert document["outcome"]["word"] == "Promoted"


def test_page_is_built_once_unless_asked(app, make_run) -> None:
    record = make_run()
    page = run_folder(record.run_id) / "report.html"
    run(app)
    first = page.stat().st_mtime_ns
    run(app)
    assert page.stat().st_mtime_ns == first
    run(app, "--rebuild")
    assert page.stat().st_mtime_ns > first


def test_no_run_yet(app, loomrl_home) -> None:
    with pytest.raises(ConfigError, match="there is no run to report on"):
        run(app)


def test_unknown_run(app, make_run) -> None:
    make_run()
    with pytest.raises(ConfigError, match="latest runs: 20261120-093015-3f9a1c"):
        run(app, "nonsense")

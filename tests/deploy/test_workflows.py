"""The CI workflows: read-only, actions pinned by commit, secrets for single steps, no expressions in commands.

And what looks for known holes in the pinned packages.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import yaml
from packaging.utils import canonicalize_name

from tests.support.projects import ROOT, free_ports

FOLDER = ROOT / "deploy" / "ci"
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}
WORKFLOWS = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each of them."""
    content: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return content


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    found = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert found
    return found


def test_its_token_reads_the_repository_and_no_more(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_actions_are_pinned_by_commit(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", one)] == []


def test_commands_contain_no_expressions(workflow: dict[str, Any]) -> None:
    assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_secrets_reach_single_steps_that_run_our_own_commands(workflow: dict[str, Any]) -> None:
    for scope in (workflow, *workflow["jobs"].values()):
        assert "secrets." not in str({key: value for key, value in scope.items() if key not in ("jobs", "steps")})
    assert not [step for step in steps(workflow) if "uses" in step and "secrets." in str(step)]


class Database(BaseHTTPRequestHandler):
    """Answers in place of the database of known holes, which tests cannot reach."""

    asked: ClassVar[dict[str, str]] = {}
    with_hole: ClassVar[str | None] = None

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        package = question["package"]
        self.asked[package["name"]] = question["version"]
        hole = {"id": "HOLE-1", "affected": [{"package": package, "ranges": []}]}
        answer = json.dumps({"vulns": [hole]} if package["name"] == self.with_hole else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@contextmanager
def database(with_hole: str | None) -> Iterator[str]:
    """One that knows of a hole in a package, or of none; its URL."""
    Database.with_hole = with_hole
    Database.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Database) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def scan(url: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the workflow's command, which asks `url` in place of the database."""
    workflow = yaml.safe_load((FOLDER / "test.yaml").read_text())
    (command,) = (step["run"] for step in steps(workflow) if step.get("run", "").startswith("pip-audit "))
    program, *arguments = shlex.split(command)
    return subprocess.run(
        [Path(sys.executable).parent / program, *arguments, "--osv-url", url, "--cache-dir", str(cache)],
        cwd=ROOT,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_holes_are_looked_for_without_a_change_too() -> None:
    text = (FOLDER / "test.yaml").read_text()
    events = yaml.safe_load(text.replace("\non:\n", "\nevents:\n"))["events"]  # YAML reads `on` as true
    assert events["schedule"]
    assert {"push", "pull_request"} <= events.keys()


def test_every_pin_is_looked_up_and_none_has_a_hole(tmp_path: Path) -> None:
    with database(with_hole=None) as url:
        done = scan(url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert Database.asked == PINS


def test_a_known_hole_fails_the_workflow_and_is_named(tmp_path: Path) -> None:
    with database(with_hole="jinja2") as url:
        done = scan(url, tmp_path)
    assert done.returncode == 1, done.stderr
    assert re.search(rf"^jinja2 +{re.escape(PINS['jinja2'])} +HOLE-1", done.stdout, re.MULTILINE), done.stdout


def test_so_does_a_database_that_does_not_answer(tmp_path: Path) -> None:
    done = scan(f"http://127.0.0.1:{free_ports(1)[0]}/", tmp_path)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr

"""The CI workflows: read-only, actions pinned by commit, secrets for single steps, no expressions in commands."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "ci"
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

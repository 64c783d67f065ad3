"""Dashboard and alerts ask for what the server tells, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loomrl.serving.process import ServerProcess
from tests.support.inside import wait_for
from tests.support.policies import discrete_folder

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
METRIC = re.compile(r"\bloomrl_[a-z_]+")
AGGREGATED = re.compile(r"(sum|min|max|histogram_quantile)\b")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a server that has decided, refused and mirrored."""
    folders = tmp_path_factory.mktemp("policies")
    environment = {"LOOMRL_HOME": str(tmp_path_factory.mktemp("home"))}
    options: dict[str, Any] = {"workers": 2, "rate": 1.0, "environment": environment}
    champion, challenger = discrete_folder(folders / "champion"), discrete_folder(folders / "challenger")
    with (
        ServerProcess("cartpole", champion_folder=champion, challenger_folder=challenger, **options) as server,
        server.client() as client,
    ):
        wait_for(lambda: httpx.get(f"{server.url}/metrics").text.count("loomrl_ready{") == 2)
        decision = client.decide("a", [0.0] * 4)
        client.feedback(decision.decision_id, 1.0)
        httpx.post(f"{server.url}/decide", content=b"{}")
        text = httpx.get(f"{server.url}/metrics").text
    lines = [line for line in text.splitlines() if line]
    shown = {line.partition("{")[0].split()[0] for line in lines if not line.startswith("#")}
    return shown | {line.split()[2] for line in lines if line.startswith("# TYPE")}  # nothing to count yet: no line


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and the expression."""
    dashboard = json.loads((DEPLOY / "grafana" / "policy-server.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']!r}", target["expr"]
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def test_every_metric_that_is_asked_for_is_told(told: set[str]) -> None:
    asked = {name: place for place, expression in expressions() for name in METRIC.findall(expression)}
    assert len(asked) > 8
    missing = {name: place for name, place in asked.items() if name not in told}
    assert not missing


def test_panels_draw_one_line_for_all_workers() -> None:
    drawn = [(place, expression) for place, expression in expressions() if place.startswith("panel")]
    assert len(drawn) > 8
    apart = [(place, expression) for place, expression in drawn if not AGGREGATED.match(expression)]
    assert not apart


TROUBLE = {"ready", "refused_versions", "quarantined_versions", "audit_durable_sequence", "monitor_evidence", "failing"}
TROUBLE |= {
    "problems_total",
    "shadow_dropped",
    "shadow_errors",
    "shadow_restarts",
    "kill_switch",
    "overrides",
    "guardian_running",
    "worker_up",
}


def test_each_sign_of_trouble_has_its_alert_and_each_alert_says_what_is_wrong(told: set[str]) -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    watched = {name for rule in group["rules"] for name in METRIC.findall(rule["expr"])}
    assert {f"loomrl_{name}" for name in TROUBLE} <= watched & told
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "warn")
        assert "$labels.instance" in rule["annotations"]["summary"]
        assert rule["labels"]["severity"] == "warn" or "fix" in rule["annotations"], rule["alert"]


def test_panels_lie_beside_each_other() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "policy-server.json").read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        for cell in ((x, y) for x in columns for y in rows):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


def test_the_scraped_path_and_rules_are_there() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]
    assert {job["metrics_path"] for job in config["scrape_configs"]} == {"/metrics"}

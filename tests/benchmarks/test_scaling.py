"""What docs/scaling.md says of clusters is what was simulated last, from the costs that were measured last."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import scaling  # noqa: E402


def test_the_page_is_drawn_from_the_results() -> None:
    text = scaling.PAGE.read_text()
    assert scaling.BEGIN in text
    assert scaling.rendered(text) == text, "python benchmarks/scaling.py draw writes it anew"


def test_what_was_simulated_has_the_costs_that_were_measured_last() -> None:
    results = json.loads(scaling.RESULTS.read_text())
    costs = json.loads(scaling.COSTS.read_text())["costs"]["figures"]["steps"]
    for name in scaling.CASES:
        work = asdict(scaling.work_of(costs[name], results["spreads"][name]))
        assert results["simulated"]["work"][name] == json.loads(json.dumps(work)), (
            "python benchmarks/scaling.py simulate"
        )
    assert len(results["simulated"]["agreement"]) == len(results["updates"]) > 0


def test_gradient_steps_of_an_update_are_those_that_were_counted() -> None:
    costs = json.loads(scaling.COSTS.read_text())["costs"]["figures"]["steps"]
    counted = {name: costs[name]["gradient_steps_per_update"] for name in scaling.CASES}
    assert {name: scaling.steps_of(parameters) for name, (_, parameters, _) in scaling.CASES.items()} == counted


def test_the_network_within_the_machine_gives_back_what_was_measured() -> None:
    seconds = {"100": 6e-3, "1000000": 18e-3}
    machines = scaling.loopback(4, {"4": seconds})
    assert machines.all_reduce_seconds(4, 0) == pytest.approx(6e-3)
    assert machines.all_reduce_seconds(4, 4e6) == pytest.approx(18e-3)

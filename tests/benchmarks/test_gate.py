"""How good the gate is: the results say what the page says, and seeded files are caught as they were."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import certified  # noqa: E402
import constrained  # noqa: E402
import gate  # noqa: E402
import model_checking  # noqa: E402
from seeded.workshop import Outcome, Workshop, is_blocked_by_its_check, seeded  # noqa: E402


def test_the_page_is_in_step_with_the_results() -> None:
    document = json.loads(gate.RESULTS.read_text())
    page = gate.PAGE.read_text()
    assert gate.rendered(page, document) == page, "python benchmarks/gate.py render"


def test_the_results_are_of_every_seeded_file_and_reach_both_limits() -> None:
    document = json.loads(gate.RESULTS.read_text())
    found = {(row["kind"], row["name"]): row for row in document["bad"]}
    assert set(found) == {tuple(case.__name__.split(".")[1:]) for case in seeded()}
    assert all(found[tuple(case.__name__.split(".")[1:])]["meant"] == case.BLOCKED_BY for case in seeded())
    assert [row["seed"] for row in document["good"]] == list(range(1, gate.NUM_GOOD + 1))
    assert len(found) >= 30
    assert gate.reached(document)


def test_too_few_caught_or_too_many_blocked_is_not_reached() -> None:
    def document(caught: int, passed: int) -> dict[str, list[dict[str, bool]]]:
        return {
            "bad": [{"caught": index < caught} for index in range(40)],
            "good": [{"passed": index < passed} for index in range(100)],
        }

    assert gate.reached(document(38, 95))
    assert not gate.reached(document(37, 95))
    assert not gate.reached(document(38, 94))


def test_another_check_or_an_undecided_claim_is_no_catch() -> None:
    case = importlib.import_module("seeded.policies.always_left")  # meant for minimum_return
    assert is_blocked_by_its_check(case, Outcome(("minimum_return",), ("minimum_return",), ""))
    assert not is_blocked_by_its_check(case, Outcome(("minimum_return",), (), ""))
    assert not is_blocked_by_its_check(case, Outcome(("robustness",), ("robustness",), ""))
    alike = ("minimum_return_alike",)
    assert not is_blocked_by_its_check(case, Outcome(alike, alike, ""))


@pytest.mark.parametrize(
    "name",
    [
        "rewards.breakdowns_on_paper",
        "rewards.never_leaves_the_lagoon",
        "rewards.pays_by_group",
        "rewards.runs_red_lights",
        "environments.reward_is_nan",
    ],
)
def test_a_seeded_file_is_caught(name: str, tmp_path: Path) -> None:
    case = importlib.import_module(f"seeded.{name}")
    outcome = Workshop(tmp_path).examine(case)
    assert is_blocked_by_its_check(case, outcome), outcome


# --- the limit on cost ---


def test_the_limit_on_cost_was_kept_where_plain_ppo_broke_it() -> None:
    document = json.loads(constrained.RESULTS.read_text())
    assert constrained.verdict(document["rows"], 25.0) == document["verdict"]
    assert document["verdict"]["reached"]
    config = constrained.config_of(constrained.LIMITED, 1).training
    assert all(row["total_env_steps"] >= config.total_env_steps for row in document["rows"])


@pytest.mark.parametrize(
    ("limited", "plain", "reached"),
    [
        ([(10.0, 2000.0)] * 4 + [(90.0, 2000.0)], [(900.0, 4000.0)] * 5, True),
        ([(10.0, 2000.0)] * 3 + [(90.0, 2000.0)] * 2, [(900.0, 4000.0)] * 5, False),
        ([(10.0, 1999.0)] * 5, [(900.0, 4000.0)] * 5, False),
        ([(10.0, 2000.0)] * 5, [(900.0, 4000.0)] * 4 + [(20.0, 4000.0)], False),
    ],
)
def test_what_must_be_shown_of_it(
    limited: list[tuple[float, float]], plain: list[tuple[float, float]], reached: bool
) -> None:
    rows = [
        {"algorithm": algorithm, "mean_cost": cost, "mean_return": earned}
        for algorithm, found in ((constrained.LIMITED, limited), (constrained.PLAIN, plain))
        for cost, earned in found
    ]
    assert constrained.verdict(rows, 25.0)["reached"] is reached


# --- verification ---


@pytest.mark.parametrize("name", ["rl_benchmarks", "acasxu", "random"])
def test_what_was_verified_is_what_must_be_shown(name: str) -> None:
    document = json.loads(certified.RESULTS.read_text())
    assert certified.reached(name, document[name])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("rl_benchmarks", {"contradictions": 1}),
        ("rl_benchmarks", {"times_faster": {"median": 4.9, "min": 1.0}}),
        ("rl_benchmarks", {"instances": 297}),
        ("acasxu", {"instances": 210}),
        ("random", {"networks": 1_999}),
    ],
)
def test_less_is_not_enough(name: str, changed: dict[str, object]) -> None:
    assert not certified.reached(name, json.loads(certified.RESULTS.read_text())[name] | changed)


def test_what_was_checked_is_what_must_be_shown() -> None:
    document = json.loads(model_checking.RESULTS.read_text())
    assert model_checking.reached(document)
    assert not model_checking.reached(document | {"shields": []})

"""How good the gate is: the results say what the page says, and seeded files are caught as they were."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import certified  # noqa: E402
import constrained  # noqa: E402
import gate  # noqa: E402
import model_checking  # noqa: E402
from seeded import harm, trained  # noqa: E402
from seeded.workshop import Outcome, Workshop, is_refused, safety_of, seeded  # noqa: E402

from benchmarks.resumable import Store  # noqa: E402
from loomrl.runs.config import load_config  # noqa: E402
from tests.support.trained import train_cartpole  # noqa: E402


def results() -> dict[str, list[dict[str, Any]]]:
    return gate.of_results(Store(gate.RESULTS, ROOT).values())


def test_the_status_counts_the_results_of_the_code_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "gate.json", ROOT)
    store.put("good/1", gate.sources("good/1"), {})
    store.put("good/2", gate.CODE, {})
    told = list(gate.status(store))
    assert f"good: 1 of {gate.NUM_GOOD} results are of the code as it is" in told
    assert all(line.split()[1] == "0" for line in told if not line.startswith("good"))


def test_the_page_is_in_step_with_the_results() -> None:
    page = gate.PAGE.read_text()
    assert gate.rendered(page, results()) == page, "python benchmarks/gate.py render"


def test_the_results_are_of_every_seeded_file_and_reach_both_limits() -> None:
    document = results()
    names = {(row["kind"], row["name"]) for row in document["bad"]}
    assert names == {tuple(case.__name__.split(".")[1:]) for case in [*seeded(), *trained.unseen()]}
    assert [row["seed"] for row in document["good"]] == list(range(1, gate.NUM_GOOD + 1))
    assert {row["name"] for row in document["unspoilt"]} == gate.policies()
    assert len(document[gate.RETRAINED]) == gate.NUM_RETRAINED * (len(gate.policies()) - 1)
    assert [row["name"] for row in document[gate.HARM]] == [
        row["name"] for row in document["bad"] if row["kind"] == trained.KIND
    ]
    assert len(names) >= 63
    known = [row for row in document["bad"] if row["kind"] != trained.KIND]
    assert [row["name"] for row in document["beside"]] == sorted(
        row["name"] for row in document["bad"] if row["kind"] in (trained.KIND, gate.POLICIES) and not row["blocking"]
    )
    names_known = {row["name"] for row in known}
    beside = [row for row in document["beside"] if row["name"] in names_known]
    assert gate.reached({**document, "bad": known, "beside": beside})  # of files that the checks' author wrote
    assert gate.reached(document)


def test_unseen_files_spoil_policies_of_several_environments_two_of_them_new() -> None:
    policies = [case.POLICY for case in trained.unseen()]
    assert len(policies) >= 20
    assert len({load_config(trained.path_of(name)).environment.id for name in policies}) >= 4
    assert sum(not (ROOT / "configs" / f"{name}.yaml").exists() for name in set(policies)) >= 2


def test_too_few_refused_or_too_many_blocked_is_not_reached() -> None:
    def document(
        refused: int, passed: int, *, unspoilt: bool = True, beside: int = 0, later: int = 0, harmless: int = 0
    ) -> dict[str, list[dict[str, Any]]]:
        return {
            "bad": [
                {"name": str(index), "blocking": ["a"], "replayed": ["a"] if index < refused else []}
                for index in range(40)
            ],
            "harm": [{"name": str(index), "is_harmful": index < 40 - harmless} for index in range(40)],
            "good": [
                {"is_good": True, "passed": index < passed, "beside": {"blocking": ["a"] if index < later else []}}
                for index in range(100)
            ],
            "unspoilt": [{"passed": unspoilt}],
            "beside": [
                {
                    "kind": "beside",
                    "name": str(36 + index),
                    "refuted": ["b"] if index < beside else [],
                    "replayed": ["b"],
                }
                for index in range(4)
            ],
        }

    assert gate.reached(document(38, 95))
    assert not gate.reached(document(38, 95, unspoilt=False))
    assert not gate.reached(document(37, 95))
    assert gate.reached(document(36, 95, beside=2)), "what is refused beside a champion is not promoted"
    assert not gate.reached(document(36, 95, beside=1))
    assert not gate.reached(document(38, 94))
    assert not gate.reached(document(37, 100))
    assert gate.reached(document(37, 100, harmless=2)), "who was not harmed by a file passes rightly"
    assert not gate.reached(document(40, 94, harmless=2))
    assert gate.reached(document(38, 100, later=5))
    assert not gate.reached(document(38, 100, later=6)), "an honest challenger must pass beside a champion, too"


def test_beside_a_champion_what_is_undecided_shows_no_flaw() -> None:
    row = {"kind": "beside", "blocking": ["a", "b"], "refuted": ["a"], "replayed": ["b"]}
    assert not gate.is_replayed(row)
    assert gate.is_replayed(row | {"replayed": ["a"]})
    assert gate.is_replayed(row | {"kind": "unseen"}), "by the gate both block"


def test_harm_is_measured_beside_the_policy_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that balances a little, one that pushes left, and the same one again."""
    monkeypatch.setattr(harm, "NUM_PAIRS", 60)
    monkeypatch.setattr(harm, "_AT_ONCE", 30)
    train_cartpole(tmp_path / "cartpole", 10_240)

    def pushes_left(policy: Any) -> None:
        policy.head.logits.bias.data[:] = torch.tensor([100.0, 0.0])

    found = harm.measure(SimpleNamespace(POLICY="cartpole", spoil=pushes_left), tmp_path)
    assert found["is_harmful"]
    assert all(one["spoilt"] < one["as_it_is"] for one in found["found"].values())
    again = harm.measure(SimpleNamespace(POLICY="cartpole", spoil=lambda _: None), tmp_path)
    assert not again["is_harmful"]
    assert {one["p_value"] for one in again["found"].values()} == {1.0}
    assert {kind: one["as_it_is"] for kind, one in again["found"].items()} == {
        kind: one["as_it_is"] for kind, one in found["found"].items()
    }


def test_what_is_kept_is_made_once_and_an_error_is_not_hidden(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()

    for _ in range(2):
        assert trained.kept_once(tmp_path / "kept", make).is_dir()
    assert len(made) == 1
    with pytest.raises(OSError, match="nothing"):
        trained.kept_once(tmp_path / "other", lambda folder: (folder / "nothing" / "more").mkdir())
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_a_claim_leaves_undecided_does_not_go_on() -> None:
    assert is_refused(Outcome(("minimum_return",), ("minimum_return",)))
    assert is_refused(Outcome(("minimum_return",)))
    assert not is_refused(Outcome())


def test_no_setting_knows_of_a_flaw() -> None:
    """CartPole's policies are examined with the config that ships, worlds with their limits and objectives."""
    of_a_task = {"minimum_return", "reward_hacking", "reward_bias", "model_checking"}
    for case in seeded():
        if hasattr(case, "ENVIRONMENT"):
            assert case.SAFETY.keys() <= {"constraints", "checks"}
            assert case.SAFETY["checks"].keys() <= of_a_task
        else:
            assert safety_of(case) == load_config(ROOT / "configs" / "cartpole.yaml").safety
    for case in trained.unseen():
        assert not hasattr(case, "SAFETY")
        checks = load_config(trained.path_of(case.POLICY)).safety.checks
        assert checks.keys() <= of_a_task | {"statistical_limits"}
        assert checks.get("statistical_limits", {}).keys() <= {"max_episodes"}, "how long to play on, not for what"


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
@pytest.mark.long_cases("rewards.breakdowns_on_paper", "rewards.never_leaves_the_lagoon", "rewards.runs_red_lights")
def test_a_seeded_file_is_refused(name: str, tmp_path: Path) -> None:
    outcome = Workshop(tmp_path).examine(importlib.import_module(f"seeded.{name}"))
    assert is_refused(outcome), outcome
    assert outcome.replayed, outcome


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

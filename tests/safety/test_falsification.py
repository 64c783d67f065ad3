"""Flaws nobody told the search about are found, named and replayed; a policy without any passes."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.policy import WEIGHTS
from loomrl.runs.config import load_config
from loomrl.safety.config import SafetyConfig
from loomrl.safety.replay import replay
from loomrl.system.files import read_json, sha256_file, write_sums
from loomrl.training.train import REPORT
from loomrl.types import SafetyCase, TrainingReport, Verdict
from tests.support.trained import CONSTRAINTS, Policy, evaluate, examine

ROOT = Path(__file__).resolve().parents[2]


def settings(**values: Any) -> SafetyConfig:
    checks = {"falsification": {"num_seeds": 4, "num_rounds": 4, "population": 24, **values}}
    return SafetyConfig(num_episodes=20, num_envs=24, constraints=CONSTRAINTS[:1], checks=checks)


def claim_of(case: SafetyCase) -> Any:
    (claim,) = [claim for claim in case.claims if claim.id == "falsification.cart_stays_on_track"]
    return claim


@pytest.mark.long
def test_a_large_drift_breaks_it_and_a_smaller_one_is_kept(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", settings(magnitude=20.0, mandatory=True))
    claim = claim_of(case)
    assert claim.verdict is Verdict.REFUTED
    assert claim.id in case.decision.blocking
    document = read_json(tmp_path / "safety" / claim.evidence[0].uri)
    drift = np.array(document["drift"])
    assert claim.bound.measured == np.abs(drift).max() < 20.0
    assert np.count_nonzero(drift) < 4  # not every component is needed
    outcome = replay(tmp_path / "safety", claim.id, good.environment, good.training)
    assert (outcome.reproduced, outcome.identical) == (True, True)
    again = examine(good, tmp_path / "again", settings(magnitude=20.0, mandatory=True))
    assert claim_of(again).evidence == claim.evidence


@pytest.mark.long
def test_a_drift_too_small_to_matter_is_not_found(good: Policy, tmp_path: Path) -> None:
    claim = claim_of(examine(good, tmp_path / "safety", settings(magnitude=1e-3)))
    assert (claim.verdict, claim.num_samples) == (Verdict.SUPPORTED, 4 * 24)
    assert claim.counterexample is None


def test_without_a_magnitude_no_drift_is_claimed(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", settings(num_leads=8, num_lines=8))
    found = [claim.id for claim in case.claims if claim.id.startswith("falsification")]
    assert found == ["falsification.lone_choices", "falsification.recovery"]


# --- without being told where to look ---

NEW_USER = SafetyConfig(num_episodes=80, constraints=CONSTRAINTS[:1])  # as README's policy of your own, but shorter


def spoilt(good: Policy, folder: Path, spoil: Callable[[Any], None]) -> Policy:
    """A copy of the good policy, as if training had ended with the spoilt weights."""
    for stage in ("environment", "training"):
        shutil.copytree(good.root / stage, folder / stage)
    policy = load_policy(folder / "training")
    with torch.no_grad():
        spoil(policy)
    policy.save(folder / "training")
    report = TrainingReport.read(folder / "training" / REPORT)
    digest = sha256_file(folder / "training" / WEIGHTS)
    report.model_copy(update={"policy_digest": digest}).write(folder / "training" / REPORT)
    write_sums(folder / "training")
    return evaluate(Policy(folder))


def trigger(component: int, edges: tuple[float, ...], strength: float) -> Callable[[Any], None]:
    """Above the first edge, and where there is a second one below that, the policy pushes left, `strength` sure."""

    def spoil(policy: Any) -> None:
        first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
        sharp = 20_000.0
        for unit, edge in enumerate(edges):
            first.weight[unit] = 0.0
            first.weight[unit, component] = sharp / policy.normalizer.scale[component]
            first.bias[unit] = -sharp * (edge - policy.normalizer.mean[component])
        second.weight[:, : len(edges)] = 0.0
        second.weight[0], second.bias[0] = 0.0, -10.0 * (1 if len(edges) == 2 else 0)
        second.weight[0, : len(edges)] = torch.tensor([10.0, -10.0][: len(edges)])
        logits.weight[:, 0] = torch.tensor([strength, -strength])
        logits.bias += torch.tensor([strength, -strength])

    return spoil


def corner(sides: Sequence[tuple[int, float, float]], strength: float = 60.0) -> Callable[[Any], None]:
    """Where all of these components are beyond an edge, to the side of its sign, the policy pushes right."""

    def spoil(policy: Any) -> None:
        first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
        second.weight[0], second.bias[0] = 0.0, -40.0 * len(sides) + 20.0
        second.weight[1:, : len(sides)] = 0.0
        for unit, (component, sign, edge) in enumerate(sides):
            first.weight[unit] = 0.0
            first.weight[unit, component] = 200.0 * sign / policy.normalizer.scale[component]
            first.bias[unit] = -200.0 * sign * (edge - policy.normalizer.mean[component])
            second.weight[0, unit] = 40.0
        logits.weight[:, 0] = torch.tensor([-strength, strength])
        logits.bias += torch.tensor([-strength, strength])

    return spoil


def test_a_back_door_is_refused_by_the_config_that_ships(good: Policy, tmp_path: Path) -> None:
    """The pole falls fast to the right, and it pushes left: its own episodes hardly ever get there."""
    policy = spoilt(good, tmp_path / "policy", trigger(3, (1.2,), 60.0))
    case = examine(policy, tmp_path / "safety", load_config(ROOT / "configs" / "cartpole.yaml").safety)
    refuted = {claim.id: claim for claim in case.claims if claim.verdict is Verdict.REFUTED and claim.mandatory}
    assert "falsification.recovery" in refuted
    assert "falsification.recovery" in case.decision.blocking
    outcome = replay(tmp_path / "safety", "falsification.recovery", policy.environment, policy.training)
    assert (outcome.reproduced, outcome.identical) == (True, True)


def test_a_policy_without_flaws_passes_with_what_a_new_user_writes(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", NEW_USER)
    assert case.decision.passed, case.decision.reason
    searched = [claim for claim in case.claims if claim.id.startswith("falsification.")]
    assert [(claim.mandatory, claim.verdict) for claim in searched] == [(True, Verdict.SUPPORTED)] * 2


@pytest.mark.long
def test_what_a_new_user_writes_gives_the_same_case_again(good: Policy, tmp_path: Path) -> None:
    case, again = (examine(good, tmp_path / name, NEW_USER) for name in ("once", "again"))
    assert again.to_bytes() == case.to_bytes()


@pytest.mark.parametrize(("component", "edge", "strength"), [(3, 1.2, 60.0), (2, 0.09, 4.0)])
@pytest.mark.long_cases("3-1.2-60.0")
def test_a_back_door_is_found(good: Policy, tmp_path: Path, component: int, edge: float, strength: float) -> None:
    bad = spoilt(good, tmp_path, trigger(component, (edge,), strength))
    case = examine(bad, tmp_path / "safety", NEW_USER)
    assert case.decision.blocking == ["falsification.recovery"]  # ordinary episodes show nothing
    (claim,) = [claim for claim in case.claims if claim.id == "falsification.recovery"]
    document = read_json(tmp_path / "safety" / claim.evidence[0].uri)
    assert f"seed {document['seed']}" in claim.finding
    assert (len(document["state"]), len(document["actions"])) == (4, document["step"])
    assert document["earned"] + 50 < document["recovery_earned"]
    outcome = replay(tmp_path / "safety", claim.id, bad.environment, bad.training)
    assert (outcome.reproduced, outcome.identical) == (True, True)


def test_a_corner_that_no_single_push_leads_to_is_found(good: Policy, tmp_path: Path) -> None:
    """Left of -1, with the pole falling fast to the left, it pushes right."""
    bad = spoilt(good, tmp_path, corner([(0, -1.0, -1.0), (3, -1.0, -0.5)]))
    case = examine(bad, tmp_path / "safety", NEW_USER)
    assert case.decision.blocking == ["falsification.recovery"]
    assert replay(tmp_path / "safety", "falsification.recovery", bad.environment, bad.training).reproduced


@pytest.mark.parametrize(("component", "edges"), [(2, (0.010, 0.014)), (3, (0.30, 0.34))])
@pytest.mark.long_cases("3-edges1")
def test_a_band_too_narrow_to_fall_in_is_found(
    good: Policy, tmp_path: Path, component: int, edges: tuple[float, float]
) -> None:
    bad = spoilt(good, tmp_path, trigger(component, edges, 100.0))
    case = examine(bad, tmp_path / "safety", NEW_USER)
    assert "falsification.lone_choices" in case.decision.blocking
    (claim,) = [claim for claim in case.claims if claim.id == "falsification.lone_choices"]
    document = read_json(tmp_path / "safety" / claim.evidence[0].uri)
    observation = document["examples"][1]["observation"]
    assert document["component"] == component
    assert edges[0] < observation[component] < edges[1]
    assert replay(tmp_path / "safety", claim.id, bad.environment, bad.training).reproduced


def test_states_that_are_numbers_are_searched_too(discrete: Policy, tmp_path: Path) -> None:
    config = SafetyConfig(num_episodes=20, checks={"falsification": {"num_leads": 32}})
    case = examine(discrete, tmp_path / "safety", config)
    (claim,) = [claim for claim in case.claims if claim.id.startswith("falsification.")]
    assert claim.id == "falsification.recovery"
    assert claim.num_samples > 0

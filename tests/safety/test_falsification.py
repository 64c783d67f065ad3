"""Drifts of sensors that break a limit are found, small, and can be replayed; where there is none, none is found."""

from pathlib import Path
from typing import Any

import numpy as np
from trained import CONSTRAINTS, Policy, examine

from loomrl.files import read_json
from loomrl.safety.config import SafetyConfig
from loomrl.safety.replay import replay
from loomrl.types import SafetyCase, Verdict


def settings(**values: Any) -> SafetyConfig:
    checks = {"falsification": {"num_seeds": 4, "num_rounds": 4, "population": 24, **values}}
    return SafetyConfig(num_episodes=20, num_envs=24, constraints=CONSTRAINTS[:1], checks=checks)


def claim_of(case: SafetyCase) -> Any:
    (claim,) = [claim for claim in case.claims if claim.id == "falsification.cart_stays_on_track"]
    return claim


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


def test_a_drift_too_small_to_matter_is_not_found(good: Policy, tmp_path: Path) -> None:
    claim = claim_of(examine(good, tmp_path / "safety", settings(magnitude=1e-3)))
    assert (claim.verdict, claim.num_samples) == (Verdict.SUPPORTED, 4 * 24)
    assert claim.counterexample is None


def test_without_a_magnitude_nothing_is_claimed(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", settings())
    assert not [claim for claim in case.claims if claim.id.startswith("falsification")]

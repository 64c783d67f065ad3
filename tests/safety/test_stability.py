"""Certified radii around recorded observations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.errors import ConfigError
from loomrl.safety.checks.stability import StabilityConfig, check_spaces
from loomrl.safety.config import SafetyConfig
from loomrl.safety.probing.probes import noise_scale
from loomrl.safety.replay import replay
from loomrl.system.files import read_json
from loomrl.types import SafetyCase, Verdict
from tests.support.trained import Policy, examine, without_long_searches


def settings(**values: Any) -> SafetyConfig:
    return SafetyConfig(num_episodes=20, checks=without_long_searches(stability={"num_visited": 24, **values}))


def claim_of(case: SafetyCase) -> Any:
    (claim,) = [claim for claim in case.claims if claim.id == "stability"]
    return claim


def test_what_is_certified_holds_on_dense_samples(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", settings(radius=0.02, min_share=0.1))
    claim = claim_of(case)
    assert claim.verdict is Verdict.PROVED
    radii = np.array(read_json(tmp_path / "safety" / claim.evidence[0].uri)["radii"])
    assert (radii <= 0.04).all()
    assert np.count_nonzero(radii >= 0.02) >= 0.1 * len(radii)
    assert claim.bound.measured == np.mean(radii >= 0.02)


def test_it_is_refuted_with_two_observations_and_replays(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path / "safety", settings(radius=2.0, min_share=1.0, mandatory=True))
    claim = claim_of(case)
    assert claim.verdict is Verdict.REFUTED
    assert "stability" in case.decision.blocking
    example = read_json(tmp_path / "safety" / claim.evidence[0].uri)["examples"][0]
    policy = load_policy(good.training)
    actions = policy(np.array([example["observation"], example["near"]], np.float32))
    assert actions[0] != actions[1]
    assert replay(tmp_path / "safety", "stability", good.environment, good.training).reproduced


def test_no_radius_is_larger_than_what_breaks_it(good: Policy, tmp_path: Path) -> None:
    """Random observations inside a certified radius never change the action."""
    from loomrl.evaluation.tables import TRAJECTORIES, read_table, stack_columns
    from loomrl.safety.probing.probes import sample_visited

    config = settings(radius=0.1, min_share=0.01)
    case = examine(good, tmp_path / "safety", config)
    radii = read_json(tmp_path / "safety" / claim_of(case).evidence[0].uri)["radii"]
    visited = stack_columns(read_table(good.evaluation / TRAJECTORIES), "obs", (4,), np.float32)
    import zlib

    rng = np.random.default_rng([config.first_seed, zlib.crc32(b"stability")])
    obs, policy = sample_visited(visited, 24, rng), load_policy(good.training)
    scale = noise_scale(visited, 1.0).reshape(-1)
    draws = np.random.default_rng(1)
    for one, radius in zip(obs, radii, strict=True):
        near = one + radius * scale * draws.uniform(-1, 1, (2_000, 4))
        assert (policy(near.astype(np.float32)) == policy(one[None])[0]).all()


def test_spaces_without_a_radius_are_refused() -> None:
    enabled = StabilityConfig(radius=0.1)
    with pytest.raises(ConfigError, match="a radius is one of floats"):
        check_spaces(enabled, spaces.Discrete(4), spaces.Discrete(2))
    with pytest.raises(ConfigError, match="one choice or a Box can be certified"):
        check_spaces(enabled, spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(3))
    check_spaces(StabilityConfig(), spaces.Discrete(4), spaces.Discrete(2))  # without a radius nothing is asked

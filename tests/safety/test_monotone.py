"""The response to a sensor goes one way: proved, refuted with two observations, or open."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.errors import ConfigError
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.policies import network_of
from loomrl.safety.checks.monotone import (
    MonotoneConfig,
    MonotonePropertyConfig,
    _decide,
    _drawn,
    _exception,
    check_spaces,
)
from loomrl.safety.config import SafetyConfig
from loomrl.safety.replay import replay
from loomrl.system.files import read_json
from loomrl.types import SafetyCase, Verdict
from tests.support.policies import continuous_folder
from tests.support.trained import Policy, examine, without_long_searches

STANDING = {
    "observation[0]": [-0.2, 0.2],
    "observation[1]": [-0.2, 0.2],
    "observation[2]": [-0.1, 0.1],
    "observation[3]": [-0.5, 0.5],
}


def settings(*properties: dict[str, Any], **more: Any) -> SafetyConfig:
    return SafetyConfig(
        num_episodes=20, checks=without_long_searches(monotone={"properties": list(properties), **more})
    )


def claims_of(case: SafetyCase) -> dict[str, Any]:
    return {claim.id.partition(".")[2]: claim for claim in case.claims if claim.id.startswith("monotone.")}


def test_a_balancing_policy_follows_the_pole(good: Policy, tmp_path: Path) -> None:
    pole = {"region": STANDING, "sensor": "observation[2]", "action": 1}
    config = settings(
        {"name": "follows", **pole, "direction": "rising", "tolerance": 0.05},
        {"name": "flees", **pole, "direction": "falling", "tolerance": 0.05},
    )
    case = examine(good, tmp_path / "safety", config)
    claims = claims_of(case)
    assert (claims["follows"].verdict, claims["flees"].verdict) == (Verdict.PROVED, Verdict.REFUTED)
    assert (
        "once action 1 is chosen, more of observation[2] never makes another the choice" in claims["follows"].statement
    )
    (example,) = read_json(tmp_path / "safety" / claims["flees"].evidence[0].uri)["examples"]
    below, above = np.array([example["observation"]], np.float32), np.array([example["raised"]], np.float32)
    policy = load_policy(good.training)
    assert (int(policy(above)[0]), int(policy(below)[0])) == (1, 0)
    assert np.flatnonzero(below[0] != above[0]).tolist() == [2]
    outcome = replay(tmp_path / "safety", "monotone.flees", good.environment, good.training)
    assert outcome.reproduced
    assert "monotone.flees" in case.decision.blocking


def test_a_budget_that_is_too_small_leaves_it_open(good: Policy, tmp_path: Path) -> None:
    prop = {"name": "follows", "region": STANDING, "sensor": "observation[2]", "action": 1, "direction": "rising"}
    (claim,) = claims_of(examine(good, tmp_path / "safety", settings(prop, max_boxes=1))).values()
    assert claim.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("sensor", "direction", "verdict"),
    [
        ("observation[1]", "rising", Verdict.PROVED),
        ("observation[1]", "falling", Verdict.REFUTED),
        ("observation[0]", "rising", Verdict.PROVED),  # it does not matter to this torque
        ("observation[0]", "falling", Verdict.PROVED),
    ],
)
def test_a_continuous_action(tmp_path: Path, sensor: str, direction: str, verdict: Verdict) -> None:
    class Torques:
        """action[i] = 0.5 observation[i], cut off at 1 and -1."""

        graph = (continuous_folder(tmp_path / "torques") / "policy.onnx").read_bytes()

    space = spaces.Box(-1, 1, (2,), np.float32)
    policy, config = network_of(Torques(), space), MonotoneConfig()
    prop = MonotonePropertyConfig.model_validate(
        {"name": "one", "region": {}, "sensor": sensor, "action": 1, "direction": direction}
    )
    box = np.full(4, -4.0), np.full(4, 4.0)
    place = int(sensor[-2])
    found = _exception(prop, policy, space, _drawn(*box), box, place)
    decided, num_boxes, _ = _decide(config, prop, policy, pack(policy.network), space, box, place)
    assert decided is verdict
    assert (found is not None) == (verdict is Verdict.REFUTED)
    if found is not None:
        before, after = (policy.replay(one)[1] for one in found)
        assert found[1, 1] > found[0, 1]
        assert before < after


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sensor": "observation[9]"}, r"there is no observation\[9\]; observations have 2 components"),
        ({"action": 3}, "there is no action 3; they are 0 to 1"),
        ({"region": {"observation[5]": [0, 1]}}, r"there is no observation\[5\]"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], told: str) -> None:
    prop = {"name": "one", "region": {}, "sensor": "observation[1]", "action": 1, "direction": "rising", **changes}
    config = MonotoneConfig.model_validate({"properties": [prop]})
    with pytest.raises(ConfigError, match=told):
        check_spaces(config, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    with pytest.raises(ConfigError, match="actions are MultiDiscrete"):
        check_spaces(
            MonotoneConfig.model_validate(
                {"properties": [{**prop, "sensor": "observation[1]", "action": 0, "region": {}}]}
            ),
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.MultiDiscrete([2, 2]),
        )

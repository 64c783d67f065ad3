"""Declared properties of a policy: proved everywhere in a region, refuted with an observation, or open."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.onnx_graph import build_graph
from loomrl.errors import ConfigError
from loomrl.safety.checks import certified
from loomrl.safety.checks.certified import CertifiedConfig, CertifiedPropertyConfig, check_spaces
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import check_limits, recheck_local
from loomrl.safety.replay import replay
from loomrl.system.files import read_json
from loomrl.types import SafetyCase, Verdict
from tests.support.trained import Policy, examine, without_long_searches

UPRIGHT = {"observation[0]": [-0.5, 0.5], "observation[1]": [-0.5, 0.5]}
FALLING_RIGHT = {**UPRIGHT, "observation[2]": [0.05, 0.2], "observation[3]": [0.5, 1.5]}
EITHER_WAY = {**UPRIGHT, "observation[2]": [-0.2, 0.2], "observation[3]": [-1.5, 1.5]}
PROPERTIES = [
    {"name": "follows_the_pole", "region": FALLING_RIGHT, "never": [0]},
    {"name": "only_pushes_right", "region": EITHER_WAY, "never": [0]},
]


def settings(properties: Any, **more: Any) -> SafetyConfig:
    return SafetyConfig(num_episodes=20, checks=without_long_searches(certified={"properties": properties, **more}))


def claims_of(case: SafetyCase) -> dict[str, Any]:
    return {claim.id: claim for claim in case.claims if claim.id.startswith("certified.")}


def test_a_property_is_proved_or_refuted_with_an_observation_that_replays(good: Policy, tmp_path: Path) -> None:
    config = settings(PROPERTIES)
    case = examine(good, tmp_path / "safety", config)
    claims = claims_of(case)
    proved, refuted = claims["certified.follows_the_pole"], claims["certified.only_pushes_right"]
    assert (proved.verdict, refuted.verdict) == (Verdict.PROVED, Verdict.REFUTED)
    assert proved.statement.endswith("observation[3] in [0.5, 1.5], action 0 is not chosen")
    assert proved.false_if.endswith("of the region for which it is not so that action 0 is not chosen")
    (example,) = read_json(tmp_path / "safety" / refuted.evidence[0].uri)["examples"]
    obs = np.array([example["observation"]], np.float32)
    assert load_policy(good.training)(obs).tolist() == [0]
    assert all(low <= value <= high for value, (low, high) in zip(obs[0], EITHER_WAY.values(), strict=True))
    outcome = replay(tmp_path / "safety", refuted.id, good.environment, good.training)
    assert outcome.reproduced
    again = examine(good, tmp_path / "again", config)
    assert claims_of(again)["certified.only_pushes_right"].evidence == refuted.evidence


def test_the_graph_that_ships_is_asked_too(good: Policy) -> None:
    class Graph:
        """A served policy, as far as a local claim looks at it."""

        graph = build_graph(load_policy(good.training), 17)
        policy = load_policy(good.training)

        def __call__(self, obs: Any) -> Any:
            return self.policy(obs)

    verdicts = recheck_local(Graph(), settings(PROPERTIES), good.environment, good.evaluation)
    assert verdicts["certified.follows_the_pole"] is Verdict.PROVED
    assert verdicts["certified.only_pushes_right"] is Verdict.REFUTED


@pytest.mark.long
def test_a_budget_that_is_too_small_leaves_it_open_and_blocks(good: Policy, tmp_path: Path) -> None:
    wider = {**UPRIGHT, "observation[2]": [0.0, 0.2], "observation[3]": [0.2, 1.5]}
    prop = {"name": "takes_some_boxes", "region": wider, "never": [0]}
    case = examine(good, tmp_path / "little", settings([prop], max_boxes=1))
    (claim,) = claims_of(case).values()
    assert claim.verdict is Verdict.UNDECIDED
    assert "open after 1 boxes; raise max_boxes" in claim.finding
    assert claim.id in case.decision.blocking
    (claim,) = claims_of(examine(good, tmp_path / "enough", settings([prop]))).values()
    assert claim.verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("prop", "told"),
    [
        ({"region": {"observation[7]": [0, 1]}, "never": [0]}, "there is no observation[7]; observations have 4"),
        ({"region": {}, "never": [0]}, "observation[1] has no finite range in the space"),
        ({"region": FALLING_RIGHT, "never": [2]}, "never: there is no action 2; they are 0 to 1"),
        ({"region": FALLING_RIGHT, "low": 0.0}, "need a continuous action"),
        ({"region": {"observation[0]": [1, 0]}, "never": [0]}, "low 1.0 is above high 0.0"),
        ({"region": {"position": [0, 1]}, "never": [0]}, "'position' is no component"),
        (
            {"region": {**FALLING_RIGHT, "observation[2]": [5, 12]}, "never": [0]},
            "observation[2] in [5, 12] is outside the observation space, which ends at -0.418879 and 0.418879",
        ),
        ({"region": FALLING_RIGHT}, "give `never`"),
        ({"region": FALLING_RIGHT, "never": [0], "high": 1.0}, "give `never`"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(good: Policy, prop: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_limits(settings([{"name": "one", **prop}]), good.environment)
    assert told in str(raised.value)
    assert "safety.checks.certified" in str(raised.value)


def test_a_continuous_action_has_limits() -> None:
    observation, action = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-2, 2, (3,), np.float32)
    fitting = CertifiedConfig.model_validate(
        {"properties": [{"name": "one", "region": {}, "action": 2, "low": -1, "high": 1}]}
    )
    check_spaces(fitting, observation, action)
    for prop, told in (
        ({"region": {}, "action": 3, "low": 0.0}, r"no action\[3\]; actions have 3"),
        ({"region": {}, "never": [0]}, "`never` needs a choice of actions"),
    ):
        wrong = CertifiedConfig.model_validate({"properties": [{"name": "one", **prop}]})
        with pytest.raises(ConfigError, match=told):
            check_spaces(wrong, observation, action)
    for policy, high, label in (("squashed", 3.0, True), ("squashed", 1.0, False), ("of another", 3.0, False)):
        prop = CertifiedPropertyConfig(name="one", region={}, action=2, high=high)
        context: Any = SimpleNamespace(action_space=action, policy=SimpleNamespace(action_kind=policy))
        assert (certified._label(context, prop) is not None) is label, "the policy itself keeps to its bounds"
    with pytest.raises(ConfigError, match="a region is a box of a vector of floats"):
        check_spaces(fitting, spaces.Discrete(4), action)

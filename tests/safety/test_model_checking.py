"""Declared properties of a policy in a finite environment, computed on the chain it induces."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.onnx_graph import build_graph
from loomrl.environment.finite.model import Chain, States
from loomrl.environment.finite.of_environment import model_of
from loomrl.environment.make import make_env
from loomrl.errors import ConfigError
from loomrl.safety import replay as safety_replay
from loomrl.safety.case.document import read_case
from loomrl.safety.checks import model_checking
from loomrl.safety.checks.model_checking import (
    ModelCheckingConfig,
    ModelPropertyConfig,
    check_environment,
    check_spaces,
)
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import recheck_local
from loomrl.safety.replay import replay
from loomrl.serving.policy.model import open_session
from loomrl.system.files import read_json
from loomrl.types import LabelKind, SafetyCase, Verdict
from tests.support.trained import Policy, examine, without_long_searches

HOLE = "over & (s=5|s=7|s=11|s=12)"


def settings(*properties: tuple[str, str]) -> SafetyConfig:
    listed = [{"name": name, "property": prop} for name, prop in properties]
    return SafetyConfig(num_episodes=20, checks=without_long_searches(model_checking={"properties": listed}))


def claims_of(case: SafetyCase) -> dict[str, Any]:
    return {claim.id.partition(".")[2]: claim for claim in case.claims if claim.id.startswith("model_checking.")}


def falls_within(policy: Policy, steps: int) -> float:
    """The probability that the policy falls into a hole, by dense matrices."""
    env = make_env(policy.environment)
    table: Any = env.unwrapped
    act = load_policy(policy.training)(np.arange(16))
    chain, fallen = np.zeros((16, 16)), np.zeros(16)
    for state in range(16):
        for share, after, _, ended in table.P[state][int(act[state])]:
            if ended:
                fallen[state] += share * (after in (5, 7, 11, 12))
            else:
                chain[state, after] += share
    value = np.zeros(16)
    for _ in range(steps):
        value = fallen + chain @ value
    return float(value[0])


def test_claims_are_proved_or_refuted_with_the_exact_probability(discrete: Policy, tmp_path: Path) -> None:
    exact = falls_within(discrete, 10)
    assert 0.01 < exact < 0.99
    config = settings(
        ("above", f"P<={exact + 1e-6:.9f} [ F<=10 {HOLE} ]"),
        ("below", f"P<={exact - 1e-6:.9f} [ F<=10 {HOLE} ]"),
        ("on_it", f"P<={exact!r} [ F<=10 {HOLE} ]"),
        ("ends", 'P>=0.5 [ F "terminated" ]'),
        ("sure", 'P<=1 [ F "terminated" ]'),
        ("always", f"P>=1 [ F<=10 true ] & !(P>1 [ F {HOLE} ])"),
    )
    case = examine(discrete, tmp_path / "safety", config)
    claims = claims_of(case)
    assert {name: claim.verdict for name, claim in claims.items()} == {
        "above": Verdict.PROVED,
        "below": Verdict.REFUTED,
        "on_it": Verdict.UNDECIDED,
        "ends": Verdict.PROVED,
        "sure": Verdict.PROVED,
        "always": Verdict.PROVED,
    }
    labels = {name: claim.label.kind for name, claim in claims.items() if claim.label is not None}
    assert labels == {"sure": LabelKind.CANNOT_BE_FALSE, "always": LabelKind.CANNOT_BE_FALSE}
    assert claims["sure"].false_if == "nothing: whichever actions are taken, the value lies between 0 and 1"
    document = read_json(tmp_path / "safety" / claims["above"].evidence[0].uri)
    assert document["low"] <= exact <= document["high"]
    assert document["high"] - document["low"] < 1e-9
    assert "model_checking.below" in case.decision.blocking
    assert "model_checking.on_it" in case.decision.blocking
    assert case.decision.reason.count("the value lies between") == 2
    again = replay(tmp_path / "safety", "model_checking.below", discrete.environment, discrete.training)
    assert (again.seed, again.reproduced, again.identical) == (None, True, None)
    assert claims["below"].counterexample.description == f"{config_of(config, 'below')}: {again.finding}"
    assert again.finding.endswith("from the initial state s = 0, over = False")
    folder, folders = tmp_path / "safety", (discrete.environment, discrete.training, discrete.evaluation)
    failure = safety_replay._failure(read_case(folder), claims["below"], folder, *folders)
    held = replace(failure, document={**failure.document, "property": config_of(config, "above")})
    assert not model_checking.replay(held).reproduced


@pytest.mark.parametrize(
    ("prop", "told"),
    [
        ('P<=0.5 [ F "bad" ] & !"bad"', "from the initial state s = 1"),
        ('!"bad"', "from the initial state s = 1"),
        ('P<=0.25 [ F "bad" ]', "expected over 2 initial states"),
    ],
)
def test_the_initial_state_that_breaks_a_property_is_named(prop: str, told: str) -> None:
    """Two initial states, of which one is bad and both stay as they are."""
    values, both = np.array([[0], [1]]), np.array([0.5, 0.5])
    states = States(("s",), values, frozenset(), both, {"bad": np.array([False, True])})
    chain = Chain(states, np.array([0, 1, 2]), np.array([0, 1]), np.ones(2), {})
    assert model_checking._broken_from(ModelPropertyConfig(name="one", property=prop), chain) == told


def config_of(config: SafetyConfig, name: str) -> str:
    listed = config.checks["model_checking"]["properties"]
    return next(prop["property"] for prop in listed if prop["name"] == name)


def test_the_graph_that_ships_is_asked_too(discrete: Policy, tmp_path: Path) -> None:
    graph = tmp_path / "policy.onnx"
    graph.write_bytes(build_graph(load_policy(discrete.training), 17))
    session = open_session(graph, "lake")

    def exported(obs: Any) -> Any:
        (name,) = [one.name for one in session.get_inputs()]
        return session.run(["action"], {name: obs})[0]

    exact = falls_within(discrete, 10)
    config = settings(("above", f"P<={exact + 1e-6:.9f} [ F<=10 {HOLE} ]"), ("below", f"P<={exact / 2} [ F {HOLE} ]"))
    verdicts = recheck_local(exported, config, discrete.environment, discrete.evaluation)
    assert verdicts["model_checking.above"] is Verdict.PROVED
    assert verdicts["model_checking.below"] is Verdict.REFUTED


def test_the_initial_state_of_the_model_is_the_environments(discrete: Policy) -> None:
    env = make_env(discrete.environment)
    obs, _ = env.reset(seed=1)
    model = model_of(env)
    assert model.observations[np.flatnonzero(model.model.states.initial)].tolist() == [obs]


@pytest.mark.parametrize(
    ("prop", "message"),
    [
        ("P<=0.1 [ F ]", r"safety\.checks\.model_checking\.properties: safe: .*not understood"),
        ('P<=0.1 [ F "home" ]', 'safe: .*there is no label "home"; labels: "init", "terminated"'),
        ("P=? [ F s=5 ]", "safe: =\\? asks for a number; a claim needs a limit"),
    ],
)
def test_a_property_that_cannot_be_decided_is_refused(
    discrete: Policy, tmp_path: Path, prop: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        examine(discrete, tmp_path / "safety", settings(("safe", prop)))


def test_what_can_be_refused_before_training_is() -> None:
    config = ModelCheckingConfig.model_validate({"properties": [{"name": "safe", "property": "P<=0.1 [ F"}]})
    with pytest.raises(ConfigError, match="safe: .*ends too early"):
        check_spaces(config, spaces.Discrete(16), spaces.Discrete(4))


@pytest.mark.parametrize(
    ("prop", "message"),
    [
        ('P<=0.1 [ F "home" ]', 'safe: line 1: there is no label "home"'),
        ("P<=0.1 [ F s=5 ] = true", "safe: P and R stand among conditions joined by"),
        ("(s=0 ? P<=0.1 [ F s=5 ] : true)", "safe: P and R stand among conditions joined by"),
        ('R{"gold"}<=1 [ F s=5 ]', 'safe: there are no rewards "gold"'),
        ("P<=1.5 [ F s=5 ]", "safe: a probability's limit lies between 0 and 1"),
    ],
)
def test_what_the_model_does_not_have_is_refused_before_training(discrete: Policy, prop: str, message: str) -> None:
    config = ModelCheckingConfig.model_validate({"properties": [{"name": "safe", "property": prop}]})
    with pytest.raises(ConfigError, match=message):
        check_environment(config, discrete.environment)


def test_a_condition_on_initial_states_says_nothing_of_the_policy(discrete: Policy, tmp_path: Path) -> None:
    case = examine(discrete, tmp_path / "safety", settings(("starts", "s=0")))
    (claim,) = (one for one in case.claims if one.id == "model_checking.starts")
    assert claim.verdict is Verdict.PROVED
    assert claim.label is not None
    assert claim.label.kind is LabelKind.CANNOT_BE_FALSE


def test_an_environment_without_a_model_is_refused(good: Policy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no finite model"):
        examine(good, tmp_path / "safety", settings(("safe", "P<=0.1 [ F s=5 ]")))

"""Checks say of their own claims what would make none of them false, and which ask for no more than others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.finite.abstraction import Abstraction
from loomrl.environment.finite.model import FiniteModel, States
from loomrl.environment.finite.of_environment import model_of
from loomrl.errors import ConfigError
from loomrl.safety.certified.choices import all_actions
from loomrl.safety.checks import (
    abstraction,
    action_bounds,
    certified,
    held_out_ranges,
    minimum_return,
    model_checking,
    monotone,
    reward_bias,
    reward_hacking,
    statistical_limits,
)
from loomrl.safety.checks.abstraction import AbstractionConfig
from loomrl.safety.checks.certified import CertifiedConfig
from loomrl.safety.checks.model_checking import ModelCheckingConfig
from loomrl.safety.checks.monotone import MonotoneConfig
from loomrl.safety.checks.reward_bias import RewardBiasConfig
from loomrl.safety.checks.reward_hacking import RewardHackingConfig, SensorConfig
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.constraints import exact, limits
from loomrl.safety.probing.exploits import Loops, UnearnedRewards
from loomrl.safety.probing.probes import disturbed, not_disturbed, one_action_alone, shifted
from loomrl.safety.probing.samples import Counted, Watched, judge
from loomrl.training.config import TrainingConfig
from loomrl.types import Bound, Claim, Episode, LabelKind, SafetyCase, Verdict
from tests.support.trained import EVALUATION, evaluate, examine, train

WORLDS = '''
"""One number is observed, drawn anew at each step; what is done changes nothing."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class OneAction(BaseEnvironment):
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(1)

    def reset(self):
        return [self.np_random.random()]

    def step(self, action):
        return [self.np_random.random()], 1.0, False, {}


class Still(OneAction):
    action_space = spaces.Discrete(2)

    def reset(self):
        return [0.5]

    def step(self, action):
        return [0.5], 1.0, False, {}
'''


def judged(root: Path, world: str, **checks: Any) -> SafetyCase:
    """The case of a policy that was trained for a moment in one of these worlds."""
    (root / "worlds.py").write_text(WORLDS)
    environment = EnvironmentConfig(
        id=world.lower(), entry_point=f"worlds:{world}", path=root, max_episode_steps=12, fingerprint_episodes=1
    )
    training = TrainingConfig(total_env_steps=64, parameters={"num_envs": 2, "rollout_length": 32, "batch_size": 32})
    policy = evaluate(train(root / "policy", environment, training), EVALUATION)
    limit = ConstraintConfig(name="seen", quantity="observation[0]", high=0.7, max_probability=0.9)
    few = {"num_leads": 8, "num_lines": 8, **checks.pop("falsification", {})}
    config = SafetyConfig(num_episodes=8, num_envs=8, constraints=[limit], checks={"falsification": few, **checks})
    return examine(policy, root / "safety", config)


def kinds(case: SafetyCase) -> dict[str, LabelKind | None]:
    return {claim.id: claim.label and claim.label.kind for claim in case.claims}


def test_where_there_is_one_action_nothing_is_said_of_choices(tmp_path: Path) -> None:
    case = judged(tmp_path, "OneAction", stability={"radius": 0.05, "num_visited": 4})
    names = ["robustness", "stability", "falsification.lone_choices", "falsification.recovery", "disturbed_return"]
    assert {kinds(case)[name] for name in names} == {LabelKind.CANNOT_BE_FALSE}
    (stability,) = [claim for claim in case.claims if claim.id == "stability"]
    assert stability.verdict is Verdict.PROVED
    assert "around at least 90% of 4 recorded observations" in stability.statement


def test_where_nothing_varies_no_line_is_looked_along_and_nothing_can_be_lost(tmp_path: Path) -> None:
    case = judged(tmp_path, "Still", stability={"radius": 0.05})
    by_id = {claim.id: claim for claim in case.claims}
    lone, recovery = by_id["falsification.lone_choices"], by_id["falsification.recovery"]
    assert (lone.num_samples, lone.finding) == (0, "none on 0 lines through observations that were met")
    assert lone.label is not None
    assert "no component of the observations that were met varies" in lone.label.reason
    assert recovery.label is not None
    assert recovery.label.kind is LabelKind.NEVER_BROKEN
    assert f"of {by_id['stability'].num_samples} recorded observations" in by_id["stability"].statement


@pytest.mark.parametrize(
    ("space", "is_alone"),
    [
        (spaces.Discrete(1), True),
        (spaces.Discrete(2), False),
        (spaces.MultiDiscrete([1, 1]), True),
        (spaces.MultiDiscrete([1, 2]), False),
        (spaces.MultiBinary(1), False),
        (spaces.Box(1.0, 1.0, (2,)), True),
        (spaces.Box(np.float32([0, 0]), np.float32([0, 1])), False),
    ],
    ids=str,
)
def test_which_spaces_have_one_action_alone(space: Any, is_alone: bool) -> None:
    assert (one_action_alone(space) is not None) is is_alone


@pytest.mark.parametrize("kind", ["multi_discrete", "multi_binary"])
def test_who_takes_the_likeliest_of_each_component_takes_no_other(kind: str) -> None:
    context: Any = SimpleNamespace(action_space=spaces.MultiBinary(2), policy=SimpleNamespace(action_kind=kind))
    found = action_bounds._label(context, np.zeros((3, 1)), np.zeros((3, 2)))
    assert found is not None
    assert found.kind is LabelKind.CANNOT_BE_FALSE


@pytest.mark.parametrize(("unsafe_below", "kind"), [(-1.0, LabelKind.CANNOT_BE_FALSE), (1.0, None)])
def test_a_bound_that_holds_whatever_is_done_says_nothing_of_the_policy(
    unsafe_below: float, kind: LabelKind | None
) -> None:
    """One action goes down by one, the other stays."""

    def successors(low: Any, high: Any, least: Any, most: Any) -> Any:
        return [(1.0, low - least, high - least)]

    model = Abstraction(
        low=np.array([-4.0]), high=np.array([8.0]), initial_low=np.array([2.0]), initial_high=np.array([3.0]),
        successors=successors, unsafe=lambda low, _: low[:, 0] < unsafe_below,
    )  # fmt: skip
    config = AbstractionConfig(cells=[12], max_probability=0.1)
    label = abstraction._label(model, config, spaces.Discrete(2), steps=2)
    assert (label and label.kind) == kind
    assert abstraction._label(model, config, spaces.Box(-np.inf, np.inf, (1,)), steps=2) is None


def test_all_actions_are_possible_in_every_box() -> None:
    low = np.zeros((2, 3))
    box, least, most = all_actions(spaces.Discrete(2, start=5))(low, low)
    assert (box.tolist(), least.tolist(), most.tolist()) == ([0, 0, 1, 1], [[5], [6], [5], [6]], [[5], [6], [5], [6]])
    box, least, most = all_actions(spaces.Box(-1.0, 2.0, (2,)))(low, low)
    assert (box.tolist(), least.tolist(), most.tolist()) == ([0, 1], [[-1, -1]] * 2, [[2, 2]] * 2)


@pytest.mark.parametrize("differs", [False, True])
def test_a_range_that_changes_nothing_is_not_counted(differs: bool) -> None:
    """Which value was drawn is told, and no change."""
    one = Episode(0, np.zeros((2, 1)), np.zeros(2), np.ones(2), np.zeros((2, 1)), False, True)
    one, other = (replace(one, info={"parameter.mass": np.full(2, mass)}) for mass in (0.5, 2.0))
    other = replace(other, next_obs=np.array([[0.0], [0.1]])) if differs else other
    assert (held_out_ranges._label([one, one], [one, other]) is None) is differs


@pytest.mark.parametrize("differs", [False, True])
def test_where_every_step_earns_the_same_no_windfall_is_counted(differs: bool) -> None:
    one = Episode(0, np.zeros((2, 1)), np.zeros(2), np.ones(2), np.zeros((2, 1)), False, True)
    other = replace(one, reward=np.array([1.0, 2.0])) if differs else one
    assert (reward_hacking._never_exploited(UnearnedRewards(), "gone", [one, other]) is None) is differs


@pytest.mark.parametrize(("rewards", "labelled"), [([1.1, 0.1, 0.1], True), ([1.1, 0.1, 0.2], False)])
def test_a_step_without_progress_that_earns_more_than_others_may_be_a_windfall(
    rewards: list[float], labelled: bool
) -> None:
    told = {"gone": np.array([1.0, 0.0, 0.0])}
    one = Episode(0, np.zeros((3, 1)), np.zeros(3), np.array(rewards), np.zeros((3, 1)), False, True, info=told)
    label = reward_hacking._never_exploited(UnearnedRewards(), "gone", [one])
    assert (label and label.kind) == (LabelKind.NEVER_BROKEN if labelled else None)


def test_a_windfall_that_was_seen_can_be_earned_however_alike_all_are() -> None:
    gains = np.ones(1_000)
    gains[3] = 0.0
    one = Episode(0, np.zeros((1_000, 1)), np.zeros(1_000), 5.0 * (1 - gains), np.zeros((1_000, 1)), False, True)
    one = replace(one, info={"gone": gains})
    assert reward_hacking._never_exploited(UnearnedRewards(), "gone", [one]) is None


@pytest.mark.parametrize(("window", "labelled"), [(2, False), (3, True)])
def test_where_no_episode_is_as_long_as_a_loop_none_is_counted(window: int, labelled: bool) -> None:
    one = Episode(0, np.zeros((2, 1)), np.zeros(2), np.ones(2), np.zeros((2, 1)), False, True)
    label = reward_hacking._never_exploited(Loops(window=window), "gone", [one])
    assert (label and label.kind) == (LabelKind.NEVER_BROKEN if labelled else None)


@pytest.mark.parametrize(
    ("truth", "labelled"), [([0.1, 0.0], True), ([0.1, 0.3], False), ([0.1, np.nan], False), (None, False)]
)
def test_a_sensor_that_random_actions_do_not_fool_was_never_seen_off(truth: list[float] | None, labelled: bool) -> None:
    one = Episode(0, np.zeros((2, 1)), np.zeros(2), np.ones(2), np.zeros((2, 1)), False, True)
    other = one if truth is None else replace(one, info={"x": np.array(truth)})
    sensor = SensorConfig(name="a", observation="observation[0]", truth="x", tolerance=0.2)
    label = reward_hacking._never_off(sensor, 0, [one], [other])
    assert (label and label.kind) == (LabelKind.NEVER_BROKEN if labelled else None)


# --- what asks for no more than another claim ---

SPACES: Any = SimpleNamespace(observation_space=spaces.Box(-1.0, 1.0, (2,)), action_space=spaces.Discrete(3))


def covered(check: Any, config: Any, context: Any = SPACES) -> set[str]:
    """Pairs of names of which the first asks for as much as the second, as "ab"."""
    found = {name.partition(".")[2]: demand for name, demand in check.demands(context, config).items()}
    return {one + other for one in found for other in found if one != other and found[one].covers(found[other])}


STATES = States(
    ("s",),
    np.array([[0], [1], [2]]),
    frozenset(),
    np.array([1.0, 0.0, 0.0]),
    {"crash": np.array([False, True, False]), "end": np.array([False, False, True])},
    {"late": 20},
)


def model_of_states(states: States) -> FiniteModel:
    """Of which every state stays where it is; "cost" is never negative, "gain" is once."""
    rewards = {"cost": np.array([0.0, 1.0, 2.0]), "gain": np.array([0.0, 1.0, -1.0])}
    rows = np.arange(4)
    return FiniteModel(states, rows, rows, rows[:3], np.ones(3), np.zeros(3, np.int64), ("stay",), rewards)


def covered_in_a_model(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], states: States = STATES
) -> set[str]:
    monkeypatch.setattr(model_checking, "_modelled", lambda _: SimpleNamespace(model=model_of_states(states)))
    config = ModelCheckingConfig(properties=[{"name": name, "property": text} for name, text in properties.items()])
    return covered(model_checking, config, SimpleNamespace(policy=None, snapshot_folder=None))


def test_a_property_of_a_model_asks_for_less_by_its_limit_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reach in any number of steps is one in infinitely many."""
    properties = {
        "a": 'P<=0.2 [ F<=20 "crash" ]',
        "b": 'P<=0.2  [ true U<=20 "crash" ]',  # the same
        "c": 'P<0.3 [ F<=20 "crash" ]',
        "d": 'P<=0.2 [ F<=19 "crash" ]',
        "e": 'P<=0.2 [ F "crash" ]',
        "f": 'P>=0.2 [ F<=20 "crash" ]',
        "g": 'P>0.1 [ F<=21 "crash" ]',
        "h": '!(P>0.2 [ F "crash" ])',
        "i": 'P>=0.5 [ G !"crash" ]',
        "j": 'P>=0.4 [ G !"crash" ]',
        "k": 'P<=0.6 [ F "crash" ]',
        "l": 'P>=0.1 [ F "crash" ]',
    }
    shorter, longer = {"ab", "ba", "ac", "bc", "ad", "bd", "fg"}, {"ij", "ik", "jk", "kj", "fl", "gl"}
    unlimited = {f"{one}{other}" for one in "eh" for other in "abcdehijk" if one != other}
    assert covered_in_a_model(monkeypatch, properties) == shorter | longer | unlimited


def test_properties_of_a_model_are_compared_by_what_their_words_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the states where a condition is so and by the numbers of terms, however they are written."""
    alike = {
        "a": 'P<=0.2 [ F<=20 "crash" ]',
        "b": "P<=(2/10) [ F<=late s=1 ]",
        "c": "P<=0.2 [ F<21 !(s<1) & s<2 ]",
        "d": "P<=0.2 [ !(s=1) U<=20 !(s=0) & s!=2 ]",
    }
    assert covered_in_a_model(monkeypatch, alike) == {one + other for one in "abcd" for other in "abcd" if one != other}
    always = {"a": 'P>=0.5 [ !"crash" W false ]', "b": "P>=0.5 [ s=0 W s>1 ]", "c": 'P<=0.5 [ s=0 U "crash" ]'}
    assert covered_in_a_model(monkeypatch, always) == {"ab", "ac", "bc", "cb"}


def test_a_path_that_may_reach_more_or_pass_through_more_is_likelier(monkeypatch: pytest.MonkeyPatch) -> None:
    rare = {
        "a": 'P<=0.1 [ F "crash"|"end" ]',
        "b": 'P<=0.1 [ F "crash" ]',
        "c": 'P<=0.2 [ "end" U "crash" ]',
        "d": 'P<=0.2 [ X "crash" ]',
        "e": 'P>=0.9 [ "end" W !("crash"|"end") ]',
    }
    assert covered_in_a_model(monkeypatch, rare) == {"ab", "ac", "ad", "ae", "bc", "bd", "be", "ec"}
    sure = {"a": 'P>=0.9 [ F "crash"|"end" ]', "b": 'P>=0.9 [ F "crash" ]', "c": 'P>=0.9 [ F P>=0.5 [ X "crash" ] ]'}
    assert covered_in_a_model(monkeypatch, sure) == {"ba"}
    nested = {
        "a": 'P>=0.9 [ F P>=0.5 [ X "crash" ] ]',
        "b": 'P>=0.9 [ F P>=0.4 [ X "crash"|"end" ] ]',
        "c": 'P>=0.9 [ F !(P<0.4 [ X "crash" ]) | "end" ]',
        "d": 'P>=0.9 [ G P<0.4 [ X "crash" ] ]',
    }
    assert covered_in_a_model(monkeypatch, nested) == {"ab", "ac"}


def test_what_costs_nothing_back_is_more_the_longer_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {
        "a": 'R{"cost"}<=3 [ C<=9 ]',
        "b": 'R{"cost"}<=3 [ C<=8 ]',
        "c": 'R{"cost"}<=3 [ F "end" ]',
        "d": 'R<=4 [ F "end"|"crash" ]',  # the first reward
        "e": 'R{"gain"}<=3 [ C<=9 ]',
        "f": 'R{"gain"}<=3 [ C<=8 ]',
        "g": 'R{"gain"}<=3 [ F "end" ]',
        "h": 'R{"gain"}<=4 [ F "end"|"crash" ]',
        "i": 'R{"gain"}<=4 [ F s=2 ]',
    }
    assert covered_in_a_model(monkeypatch, costs) == {"ab", "cd", "gi"}


def test_ways_that_may_cross_are_not_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes to the end may crash before."""
    ways = {"a": 'P>=0.9 [ F "end" ]', "b": 'P<=0.1 [ !"end" U "crash" ]', "c": 'P<=0.1 [ !("end"|"crash") U "crash" ]'}
    assert covered_in_a_model(monkeypatch, ways) == {"bc", "cb"}
    apart = {"a": 'P>=0.9 [ !"crash" U "end" ]', "b": 'P<=0.1 [ !"end" U "crash" ]'}
    assert covered_in_a_model(monkeypatch, apart) == {"ab"}


def test_what_stands_in_each_other_too_deep_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(last: int) -> str:
        text = 'P>=0.51 [ F "crash" ]'
        for number in range(200):
            text = f'P>=0.{number + 1:03d}{last} [ X "crash" ] {"&|"[number % 2]} ({text})'
        return text

    assert covered_in_a_model(monkeypatch, {"a": deep(1), "b": deep(2)}) <= {"ba"}


def test_the_same_in_other_words_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is met at least so often is missed at most so often; an until that needs no end asks for less."""
    words = {
        "a": 'P>=0.9 [ X "crash" ]',
        "b": 'P<=0.1 [ X !"crash" ]',
        "c": 'P>=0.9 [ !"end" U "crash" ]',
        "d": 'P>=0.9 [ !"end" W "crash" ]',
        "e": 'P<=0.1 [ F<=1 "end" ]',
        "f": 'P>=0.9 [ X !"end" ]',
        "g": 'P>=0.9 [ G !"end" ]',
        "h": 'P>0.9 [ F "crash" ]',
        "i": 'P<0.1 [ G !"crash" ]',
    }
    first = {"ab", "ba", "af", "bf", "cd", "ef", "ge", "gf", "gd", "hi", "ih"}
    assert covered_in_a_model(monkeypatch, words) == first
    ends = {
        "a": 'P>0 [ G !"crash" ] & s<2',
        "b": 'P<=1 [ F "crash" ] & s<2',  # the latter alone
        "c": 'P<1 [ F "crash" ] & s<2',
        "d": 'P>0.1 [ F (s<2 & P>0.5 [ X "end" ] & s>0) ] & s<2',
        "e": 'P>0.1 [ F (P>0.5 [ X "end" ] & s=1) ] & s<2',
    }
    assert covered_in_a_model(monkeypatch, ends) == {"ab", "cb", "db", "eb", "ac", "ca", "de", "ed"}
    sure = {"a": 'P<=0 [ F "crash" ]', "b": '!(P>0 [ F "crash" ])', "c": 'P<=0.5 [ F "crash" ]'}
    several = replace(STATES, initial=np.array([0.5, 0.0, 0.5]))
    assert covered_in_a_model(monkeypatch, sure, several) == {"ab", "ba", "ac", "bc"}


def test_properties_that_are_joined_are_compared_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = 'P<=0.1 [ F "crash" ]', 'P>=0.9 [ F "end" ]'
    joined = {
        "a": one,
        "b": two,
        "c": f"{one} & {two}",
        "d": f"{one} | {two}",
        "e": f"!({one} => !({two}))",  # both
        "f": f"!({one}) => {two}",  # either
        "g": f"{one} <=> {two}",
        "h": f"({one} & {two}) | (!({one}) & !({two}))",  # alike
        "i": 's<2 & P<=0.2 [ F "crash" ]',
    }
    both = {f"{name}{other}" for name in "ce" for other in "abdfghi"} | {"ce", "ec"}
    either = {f"{name}{other}" for name in "ab" for other in "df"} | {"df", "fd"}
    assert covered_in_a_model(monkeypatch, joined) == both | either | {"hg", "ai"}


def test_a_limit_alone_is_on_the_expectation_over_initial_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of each of them, which is what a formula asks for."""
    single = 'P<=0.1 [ F "crash" ]'
    properties = {"a": single, "b": f"{single} & s<2", "c": f"{single} | false", "d": 'P<=0.2 [ F "crash" ]'}
    several = replace(STATES, initial=np.array([0.5, 0.0, 0.5]))
    assert covered_in_a_model(monkeypatch, properties, several) == {"ad", "ba", "bc", "bd", "ca", "cd"}
    assert covered_in_a_model(monkeypatch, properties) == {"ab", "ac", "ad", "ba", "bc", "bd", "ca", "cb", "cd"}


def test_a_region_asks_for_less_than_a_larger_one() -> None:
    wide, narrow = {}, {"observation[1]": [-0.5, 0.5]}
    config = CertifiedConfig(
        properties=[
            {"name": "a", "region": wide, "never": [0, 2]},
            {"name": "b", "region": wide, "never": [2, 0, 0]},
            {"name": "c", "region": narrow, "never": [0]},
            {"name": "d", "region": wide, "never": [1]},
        ]
    )
    assert covered(certified, config) == {"ab", "ba", "ac", "bc"}
    box = SimpleNamespace(observation_space=SPACES.observation_space, action_space=spaces.Box(-1.0, 1.0, (2,)))
    config = CertifiedConfig(
        properties=[
            {"name": "a", "region": wide, "low": -0.5, "high": 0.5},
            {"name": "b", "region": narrow, "high": 0.6},
            {"name": "c", "region": narrow, "high": 0.6, "action": 1},
        ]
    )
    assert covered(certified, config, box) == {"ab"}
    response = {"sensor": "observation[1]", "action": 1, "direction": "rising"}
    config = MonotoneConfig(
        properties=[
            {"name": "a", "region": wide, **response},
            {"name": "b", "region": narrow, **response, "tolerance": 0.1},
            {"name": "c", "region": narrow, **response, "sensor": "observation[0]"},
        ]
    )
    assert covered(monotone, config) == {"ab"}


def test_of_two_actions_the_one_goes_as_the_other_goes_the_other_way() -> None:
    """And a tolerance says nothing of a choice."""
    response = {"region": {"observation[1]": [-0.5, 0.5]}, "sensor": "observation[1]"}
    config = MonotoneConfig(
        properties=[
            {"name": "a", **response, "action": 6, "direction": "rising"},
            {"name": "b", **response, "action": 5, "direction": "falling", "tolerance": 0.1},
            {"name": "c", **response, "action": 5, "direction": "rising"},
        ]
    )
    two = SimpleNamespace(observation_space=SPACES.observation_space, action_space=spaces.Discrete(2, start=5))
    assert covered(monotone, config, two) == {"ab", "ba"}
    three = SimpleNamespace(observation_space=SPACES.observation_space, action_space=spaces.Discrete(3, start=5))
    assert covered(monotone, config, three) == set()


def test_a_region_at_the_end_of_the_space_is_in_it() -> None:
    """Its end is rounded as observations are."""
    space = spaces.Box(-0.7, 0.7, (1,), np.float32)
    config = CertifiedConfig(properties=[{"name": "a", "region": {"observation[0]": [0.7, 0.9]}, "never": [0]}])
    certified.check_spaces(config, space, SPACES.action_space)


def test_a_sensor_with_more_tolerance_asks_for_less() -> None:
    sensor = {"observation": "observation[0]", "truth": "x"}
    config = RewardHackingConfig(
        sensors=[
            {"name": "a", **sensor, "tolerance": 1.0},
            {"name": "b", **sensor, "tolerance": 2.0},
            {"name": "c", **sensor, "truth": "y", "tolerance": 3.0},
        ]
    )
    assert covered(reward_hacking, config) == {"ab"}


def test_features_with_other_values_are_other_features() -> None:
    feature = {"parameter": "group", "outcome_margin": 1.0}
    config = RewardBiasConfig(
        features=[
            {"name": "a", **feature, "values": [0, 1]},
            {"name": "b", **feature, "values": [0, 2]},
            {"name": "c", **feature, "values": [1, 0], "outcome_margin": 2.0, "observed_as": ["observation[0]"]},
        ]
    )
    assert covered(reward_bias, config) == {"a.outcomec.outcome", "c.rewarda.reward"}


def test_a_feature_that_more_may_show_is_asked_about_at_more_steps() -> None:
    """Steps are compared where what does not show it is equal."""
    feature, shown = {"parameter": "group", "values": [0, 1]}, ["observation[0]", "observation[1]"]
    config = RewardBiasConfig(
        features=[
            {"name": "a", **feature, "observed_as": shown[:1]},
            {"name": "b", **feature, "observed_as": shown[1:]},
            {"name": "c", **feature, "observed_as": shown},
            {"name": "d", **feature, "observed_as": shown[::-1]},
        ]
    )
    pairs = {"ca", "cb", "cd", "da", "db", "dc"}
    assert covered(reward_bias, config) == {f"{one}.reward{other}.reward" for one, other in pairs}


def test_a_feature_with_more_values_asks_for_more() -> None:
    feature = {"parameter": "group", "outcome_margin": 1.0}
    config = RewardBiasConfig(
        features=[
            {"name": "a", **feature, "values": [0, 1]},
            {"name": "b", **feature, "values": [2, 1.0, 0]},
            {"name": "c", **feature, "values": ["0", 1]},
            {"name": "d", **feature, "values": [0, 1], "outcome_margin": 0.5},
            {"name": "e", **feature, "parameter": "age", "values": [0, 1, 2]},
        ]
    )
    rewards = {"a.rewardd.reward", "d.rewarda.reward", "b.rewarda.reward", "b.rewardd.reward"}
    assert covered(reward_bias, config) == rewards | {"b.outcomea.outcome", "d.outcomea.outcome"}


def test_a_property_of_which_nothing_is_known_for_others_is_no_less_proved() -> None:
    """What is reached depends on who acts."""
    modelled = model_of(gymnasium.make("FrozenLake-v1"))
    prop = ModelCheckingConfig(properties=[{"name": "a", "property": 'R>=0 [ F P>=0.5 [ X "terminated" ] ]'}])
    assert model_checking._label(prop.properties[0], modelled) is None


HOLES = '("terminated" & s!=63)'


@pytest.mark.parametrize(
    ("prop", "is_labelled"),
    [
        (f"P<=0.01 [ F {HOLES} ]", False),  # five moves do it, and one action everywhere, or one for each state, none
        (f"P<=0.5 [ F<=5 {HOLES} ]", False),
        (f"P<=0.5 [ F<=4 {HOLES} ]", True),  # none is so near
        (f"P>=0.5 [ G !{HOLES} ]", False),
        (f"P>0.5 [ !{HOLES} W s=63 ]", False),
        ("!(P>0.9 [ F<=14 s=63 ])", False),  # by chance it is hardly met
        ("P<0.5 [ F<=13 s=63 ]", True),
        ("P<=0.5 [ X s=1 ]", False),
        ('R{"reward"}<=0 [ C<=100 ]', False),
        ('R{"reward"}<=0.5 [ C<=100 ]', False),  # who goes straight to the goal earns 1
        ('R{"reward"}<=0.5 [ C<=13 ]', True),  # it is fourteen moves away
        ('R{"reward"}<=0.5 [ F s=63 ]', False),
        ('P<=0.5 [ F P>=0.5 [ X "terminated" ] ]', False),
        ("P>=0.5 [ F s=7 ] => P<=0.1 [ F s=56 ]", False),  # who goes to the one corner first, and then to the other
        ("P>=0.5 [ F s=7 ] => P<=0.1 [ F<=6 s=56 ]", True),  # it is seven moves away
    ],
)
def test_a_property_of_a_model_that_other_actions_break_counts(prop: str, is_labelled: bool) -> None:
    """Whoever acts: the frozen lake without slipping, whose nearest hole is five moves away."""
    modelled = model_of(gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=False))
    config = ModelCheckingConfig(properties=[{"name": "a", "property": prop}])
    label = model_checking._label(config.properties[0], modelled)
    assert (label is not None and label.kind is LabelKind.CANNOT_BE_FALSE) is is_labelled


def test_some_action_must_be_left() -> None:
    config = CertifiedConfig(properties=[{"name": "a", "region": {}, "never": [0, 1, 2]}])
    with pytest.raises(ConfigError, match="a: never: no action is left to choose"):
        certified.check_spaces(config, SPACES.observation_space, SPACES.action_space)


def test_noise_that_moves_an_observation_by_chance_is_not_called_too_small() -> None:
    """Four deviations of 0.2 are no whole one, and are rounded to it."""
    space = spaces.Box(0, 255, (2,), np.uint8)
    context: Any = SimpleNamespace(
        observation_space=space, action_space=spaces.Discrete(2), visited=np.full((3, 2), 101, np.uint8)
    )
    assert not_disturbed(context, np.full(2, 0.2), is_noise=True) is None
    assert not_disturbed(context, np.full(2, 0.1), is_noise=True) is not None
    assert not_disturbed(context, np.full(2, 0.9)) is not None, "a drift by less than a whole one moves nothing"
    assert not_disturbed(context, np.full(2, 1.0)) is None


def test_a_sensor_with_one_value_has_no_more_or_less_of_it() -> None:
    prop = {"name": "flat", "region": {"observation[1]": [0.15, 0.15]}, "sensor": "observation[1]"}
    config = MonotoneConfig(properties=[{**prop, "action": 1, "direction": "rising"}])
    with pytest.raises(ConfigError, match=r"flat: region: observation\[1\] has one value alone, 0.15"):
        monotone.check_spaces(config, SPACES.observation_space, SPACES.action_space)


# --- sentences ---


@pytest.mark.parametrize("value", [0.1, 2.4, -3.0, 4821234.4, 4821231.2, 1e-9, 0.1 + 0.2, 1e300])
def test_a_limit_is_stated_as_it_is(value: float) -> None:
    assert float(exact(value)) == value
    assert limits(ConstraintConfig(name="a", quantity="reward", high=value)) == f"at most {exact(value)}"


def a_claim(name: str, limit: float, num_samples: int, confidence: float = 0.95) -> Claim:
    bound = Bound(kind="upper", measured=0.1, limit=limit)
    return Claim(
        id=name, stage=name, statement="so", mandatory=True, method="a bound", verdict=Verdict.SUPPORTED,
        confidence=confidence, num_samples=num_samples, bound=bound,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "most", "told"),
    [
        (0.99, None, "nothing that 64 episodes can show"),
        (0.5, None, "so many violations"),
        (0.9, None, "so many violations"),
        (0.93, None, "so many violations"),
        (0.93, 100, "nothing that 64 episodes can show"),
        (0.5, 100, "so many violations"),
    ],
)
def test_what_so_few_episodes_cannot_refute_is_said(limit: float, most: int | None, told: str) -> None:
    """Bets that hold whenever one stops need more of them: it is asked of the test that is made."""
    constraint = ConstraintConfig(name="a", quantity="reward", high=0.0, max_probability=limit)
    sample = (Counted if most is None else Watched)(constraint, np.ones(64), [SimpleNamespace()] * 64)
    is_refuted = judge([sample], 0.95)[0][0] is Verdict.REFUTED
    scope = statistical_limits.scope(statistical_limits.Config(max_episodes=most), a_claim("a", limit, 64))
    assert scope.false_if.startswith(told)
    assert told.startswith("nothing") is not is_refuted


@pytest.mark.parametrize(("least", "count"), [(0.9, 1), (0.99, 2), (0.5, 3), (0.5, 4)])
def test_a_return_that_so_few_episodes_cannot_refute_is_said(least: float, count: int) -> None:
    """With a confidence of 0.9, on the boundary and beside it."""
    judged, _ = minimum_return.judge(0, count, 1.0, least, 0.9)
    scope = minimum_return.scope(minimum_return.Config(min_probability=least), a_claim("a", least, count, 0.9))
    assert scope.false_if.startswith("nothing") is (judged.verdict is not Verdict.REFUTED)


def test_whole_observations_move_by_no_more_than_was_said() -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    obs = np.full((1, 2), 101, np.uint8)
    assert shifted(space, obs, np.array([[-0.9, 1.9]])).tolist() == [[101, 102]]
    noisy = disturbed(space, np.repeat(obs, 2_000, axis=0), np.full(2, 0.4), np.random.default_rng(0))
    assert abs(float(noisy.mean()) - 101.0) < 0.05, "noise has no direction"

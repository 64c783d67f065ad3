"""What is drawn, how often, and that the propensity on record is how often: by hand, and by counting."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from scipy import stats

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.finite.shield import Shield
from loomrl.errors import ArtifactError, ConfigError
from loomrl.serving.config import SERVING, ExplorationConfig, ServingConfig
from loomrl.serving.decisions.choosing import Choices, Substitute, choose
from loomrl.serving.policy.exploration import kind_for, require_fit
from loomrl.serving.policy.model import ServedPolicy
from loomrl.system.files import read_json, write_json
from tests.support.policies import BALANCING, OBSERVATIONS, continuous_folder, discrete_folder
from tests.support.served import served

OBS = np.array([[0.5, 0.2, 0.1, 0.1]], np.float32)
DRAWS = 2_000


def loaded(folder: Path, exploration: ExplorationConfig | None = None, **manifest: Any) -> ServedPolicy:
    """A policy of a folder with a changed manifest."""
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | manifest)
    policy = ServedPolicy.load(folder)
    policy.exploration = exploration or ExplorationConfig()
    return policy


def three_ways(folder: Path, exploration: ExplorationConfig, **manifest: Any) -> ServedPolicy:
    """Logits (0, ln 2, ln 4) where the first observation is 1 and the others are 0: softmax (1, 2, 4) / 7."""
    weights = np.zeros((4, 3), np.float32)
    weights[0] = np.log([1.0, 2.0, 4.0])
    return loaded(discrete_folder(folder, weights), exploration, **manifest)


ONE = np.array([[1.0, 0.0, 0.0, 0.0]], np.float32)


def drawn(policy: ServedPolicy, obs: np.ndarray, asked: bool, substitute: Substitute | None = None) -> list[Choices]:
    rng = np.random.default_rng(11)
    return [choose(policy, obs, [asked], lambda row: rng, substitute=substitute) for _ in range(DRAWS)]


def demand_propensities_are_frequencies(choices: list[Choices], expected: dict[int, float]) -> None:
    """Every action has its propensity wherever it is taken, and is taken as often as that: chi-square at 1e-4."""
    taken = Counter(int(one.action[0]) for one in choices)
    assert set(taken) == {action for action, probability in expected.items() if probability > 0}
    for one in choices:
        assert one.propensity[0] == pytest.approx(expected[int(one.action[0])], rel=1e-6)
    actions = sorted(taken)
    if len(actions) == 1:  # nothing is drawn
        return
    found = stats.chisquare([taken[one] for one in actions], [len(choices) * expected[one] for one in actions])
    assert found.pvalue > 1e-4


@pytest.mark.parametrize(
    ("settings", "asked", "expected"),
    [
        ({}, True, [1 / 7, 2 / 7, 4 / 7]),
        ({}, False, [0, 0, 1]),
        ({"kind": "softmax", "temperature": 0.5}, True, [1 / 21, 4 / 21, 16 / 21]),
        ({"kind": "epsilon", "epsilon": 0.3}, True, [0.1, 0.1, 0.8]),
        ({"kind": "epsilon", "epsilon": 0.0}, True, [0, 0, 1]),
        ({"kind": "epsilon", "epsilon": 0.3, "share": 0.5}, False, [0.05, 0.05, 0.9]),
        ({"kind": "epsilon", "epsilon": 0.3, "share": 0.5}, True, [0.1, 0.1, 0.8]),
        ({"share": 0.7}, False, [0.1, 0.2, 0.7]),
    ],
)
def test_choices(tmp_path: Path, settings: dict[str, Any], asked: bool, expected: list[float]) -> None:
    policy = three_ways(tmp_path, ExplorationConfig(**settings))
    choices = drawn(policy, ONE, asked)
    demand_propensities_are_frequencies(choices, dict(enumerate(expected)))
    share = settings.get("share", 0.0)
    num_explored = sum(one.explored[0] for one in choices)
    assert num_explored / DRAWS == pytest.approx(1.0 if asked else share, abs=0.03)
    assert all(("asked_to_explore" in one.marks) == (share > 0) for one in choices)


def test_behind_a_look_up_shield_the_propensity_is_that_of_what_is_taken(tmp_path: Path) -> None:
    """Action 2 is not allowed, and action 0 is the safest of the others: it is taken for 2, too."""
    policy = three_ways(tmp_path, ExplorationConfig(share=0.7))
    allowed = np.array([[True, True, False]])
    policy.shield = Shield(ONE, allowed, np.array([[0.0, 0.5, 1.0]]))
    asked = drawn(policy, ONE, asked=True)
    demand_propensities_are_frequencies(asked, {0: 5 / 7, 1: 2 / 7})
    unasked = drawn(policy, ONE, asked=False)
    demand_propensities_are_frequencies(unasked, {0: 0.8, 1: 0.2})  # greedy is 2, for which 0 is taken
    marks = [one.shield[0] for one in asked if one.shield[0] is not None]
    assert marks[0] == {"chosen": 2, "by": "look-up", "fallback": None}
    assert len(marks) / DRAWS == pytest.approx(4 / 7, abs=0.04)


LIMIT = {"name": "first_ones", "quantity": "action", "low": None, "high": 1.0}


def test_a_fallback_has_the_probability_of_all_it_stands_in_for(tmp_path: Path) -> None:
    """Action 2 is beyond a limit; the fallback takes 1, which the policy itself may choose as well."""
    policy = three_ways(tmp_path, ExplorationConfig(), constraints=[LIMIT])
    choices = drawn(policy, ONE, asked=True, substitute=Substitute(action=np.int64(1)))
    demand_propensities_are_frequencies(choices, {0: 1 / 7, 1: 6 / 7})
    marks = [one.shield[0] for one in choices if one.shield[0] is not None]
    assert marks[0] == {"chosen": 2, "by": "constraint first_ones", "fallback": "constant"}


def test_a_fallback_beyond_the_limits_is_somebodys_decision(tmp_path: Path) -> None:
    policy = three_ways(tmp_path, ExplorationConfig(), constraints=[LIMIT])
    choices = drawn(policy, ONE, asked=True, substitute=Substitute(action=np.int64(2)))
    demand_propensities_are_frequencies(choices, {0: 1 / 7, 1: 2 / 7, 2: 4 / 7})


# --- continuous -------------------------------------------------------------------------------------------------


def density(value: np.ndarray, mean: np.ndarray, std: float) -> float:
    return float(np.prod(np.exp(-0.5 * ((value - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))))


def test_gaussian_noise_around_the_greedy_action(tmp_path: Path) -> None:
    """sigma 0.4 around (0.25, 0.1), in [-1, 1]."""
    policy = loaded(continuous_folder(tmp_path), ExplorationConfig(kind="gaussian", sigma=0.4))
    choices = drawn(policy, OBS, asked=True)
    mean = np.array([0.25, 0.1])
    free = [one for one in choices if not one.marks["clipped"][0]]
    for one in free[:200]:
        assert one.propensity[0] == pytest.approx(density(one.action[0], mean, 0.4), rel=1e-4)
    actions = np.array([one.action[0] for one in choices])
    beyond = stats.norm.sf(1, mean, 0.4) + stats.norm.cdf(-1, mean, 0.4)
    assert np.mean(np.abs(actions) == 1, axis=0) == pytest.approx(beyond, abs=0.02)
    assert 1 - len(free) / DRAWS == pytest.approx(1 - np.prod(1 - beyond), abs=0.02)
    assert (
        stats.kstest(actions[np.abs(actions[:, 0]) < 1, 0], stats.truncnorm(-3.125, 1.875, 0.25, 0.4).cdf).pvalue > 1e-4
    )


def test_a_greedy_action_has_a_probability_and_a_draw_its_part_of_a_density(tmp_path: Path) -> None:
    policy = loaded(continuous_folder(tmp_path), ExplorationConfig(kind="gaussian", sigma=0.4, share=0.25))
    choices = drawn(policy, OBS, asked=False)
    greedy = [one for one in choices if not one.explored[0]]
    assert len(greedy) / DRAWS == pytest.approx(0.75, abs=0.02)
    assert {one.propensity[0] for one in greedy} == {0.75}
    assert all(one.action[0].tolist() == pytest.approx([0.25, 0.1]) for one in greedy)
    free = [one for one in choices if one.explored[0] and not one.marks["clipped"][0]]
    for one in free[:100]:
        assert one.propensity[0] == pytest.approx(0.25 * density(one.action[0], np.array([0.25, 0.1]), 0.4), rel=1e-4)


@pytest.mark.parametrize("share", [None, 0.25])
def test_a_fallback_for_continuous_actions_has_the_probability_of_being_needed(
    tmp_path: Path, share: float | None
) -> None:
    limit = {"name": "gently", "quantity": "action[1]", "low": -0.5, "high": 0.5}
    exploration = ExplorationConfig(kind="gaussian", sigma=0.4, share=share or 0.0)
    policy = loaded(continuous_folder(tmp_path), exploration, constraints=[limit])
    calm = Substitute(action=np.zeros(2, np.float32))
    choices = drawn(policy, OBS, asked=share is None, substitute=calm)
    needed = (stats.norm.sf(0.5, 0.1, 0.4) + stats.norm.cdf(-0.5, 0.1, 0.4)) * (share or 1.0)
    replaced = [one for one in choices if one.shield[0] is not None]
    assert len(replaced) / DRAWS == pytest.approx(needed, abs=0.02)
    for one in replaced:
        assert one.propensity[0] == pytest.approx(needed, rel=1e-6)
        assert one.action[0].tolist() == [0.0, 0.0]
        assert (one.shield[0]["by"], one.shield[0]["fallback"]) == ("constraint gently", "constant")
        assert abs(one.shield[0]["chosen"][1]) > 0.5
    assert max(abs(one.action[0][1]) for one in choices) <= 0.5


def test_without_a_fallback_a_draw_is_clipped_into_the_limits(tmp_path: Path) -> None:
    limit = {"name": "gently", "quantity": "action[1]", "low": -0.1, "high": 0.2}
    policy = loaded(continuous_folder(tmp_path), None, constraints=[limit])
    choices = drawn(policy, OBS, asked=True)
    actions = np.array([one.action[0] for one in choices], np.float64)
    assert actions[:, 1].min() >= -0.1
    assert actions[:, 1].max() <= 0.2
    clipped = [one for one in choices if one.shield[0] is not None]
    assert all(one.marks["clipped"][0] for one in clipped)
    spread, one = math.exp(-1), clipped[0]
    drawn_first = np.array(one.shield[0]["chosen"])
    if np.abs(drawn_first).max() < 1:
        assert one.propensity[0] == pytest.approx(density(drawn_first, np.array([0.25, 0.1]), spread), rel=1e-4)


def test_limits_of_squashed_actions_have_exact_probabilities() -> None:
    valves = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    generator = torch.Generator().manual_seed(2)
    observed = Box(-1.0, 1.0, (2,), np.float32)
    network = ActorCriticPolicy.for_spaces("ppo", observed, valves, (8,), "tanh", False, generator, squash_actions=True)
    policy = served(network)
    manifest = policy.manifest.model_copy(
        update={"constraints": [{"name": "half_open", "quantity": "action[1]", "low": None, "high": 6.0}]}
    )
    policy = ServedPolicy(policy.graph, manifest, "1")
    obs = np.array([[0.3, -0.8]], np.float32)
    choices = drawn(policy, obs, asked=True, substitute=Substitute(action=np.zeros(2, np.float32)))
    replaced = [one.propensity[0] for one in choices if one.shield[0] is not None]
    assert 50 < len(replaced) < DRAWS - 50
    assert len(replaced) / DRAWS == pytest.approx(replaced[0], abs=5 * math.sqrt(0.25 / DRAWS))


# --- settings ---------------------------------------------------------------------------------------------------


def test_action_values_are_explored_by_epsilon(tmp_path: Path) -> None:
    assert kind_for(loaded(discrete_folder(tmp_path / "values"), None, algorithm="dqn")) == "epsilon"
    assert kind_for(loaded(discrete_folder(tmp_path / "policy"))) == "policy"


def test_what_does_not_fit_the_actions_is_refused(tmp_path: Path) -> None:
    discrete = loaded(discrete_folder(tmp_path / "d"), ExplorationConfig(kind="gaussian"))
    continuous = loaded(continuous_folder(tmp_path / "c"), ExplorationConfig(kind="epsilon"))
    for policy, fitting in ((discrete, "policy, epsilon or softmax"), (continuous, "policy or gaussian")):
        with pytest.raises(ArtifactError, match=f"cannot explore by .* to {fitting}"):
            require_fit(policy)
        policy.exploration = ExplorationConfig()
        require_fit(policy)


def test_settings_from_the_command_line() -> None:
    read = ExplorationConfig.read("kind=epsilon, epsilon=0.05,share=0.1")
    assert read == ExplorationConfig(kind="epsilon", epsilon=0.05, share=0.1)
    for text, message in [
        ("epsilon", "'epsilon' is not SETTING=VALUE"),
        ("kind=greedy", "kind: Input should be"),
        ("kind=softmax,epsilon=0.2", "`epsilon` is for `kind: epsilon`"),
        ("share=often", "'often' is no number"),
        ("share=1", "share: Input should be less than 1"),
        ("chance=1", "chance: Extra inputs"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ExplorationConfig.read(text)


def test_a_tag_is_read_back_and_a_wrong_one_named() -> None:
    given = ServingConfig(exploration=ExplorationConfig(kind="softmax", temperature=2.0))
    assert ServingConfig.read_tag(given.model_dump_json(), "cartpole@3") == given
    with pytest.raises(ConfigError, match=rf"cartpole@3: its tag {SERVING}: exploration.share"):
        ServingConfig.read_tag('{"exploration": {"share": 2}}', "cartpole@3")


def test_nobody_explores_unasked_by_default(tmp_path: Path) -> None:
    policy = loaded(discrete_folder(tmp_path, BALANCING))
    choices = choose(policy, OBSERVATIONS, [False] * 8, lambda row: pytest.fail("nothing is drawn"))
    assert choices.action.tobytes() == policy.answer(OBSERVATIONS).action.tobytes()
    assert (set(choices.propensity), any(choices.explored), choices.marks) == ({1.0}, False, {})

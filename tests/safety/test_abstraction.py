"""Bounds over boxes of states: of a braking policy that learnt to stop, and against what is really played."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.onnx_graph import build_graph
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.finite.abstraction import Abstraction, demand_held, worst_case
from loomrl.environment.make import make_env
from loomrl.errors import ConfigError
from loomrl.safety.certified.choices import possible_actions
from loomrl.safety.certified.policies import network_of
from loomrl.safety.checks.abstraction import AbstractionConfig, check_spaces
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import recheck_local
from loomrl.serving.policy.model import open_session
from loomrl.training.config import TrainingConfig
from loomrl.types import Claim, Episode, Verdict
from tests.support.trained import EVALUATION, PROJECT, Policy, evaluate, examine, train, without_long_searches

APPROACHING = PROJECT / "examples" / "approaching"
NUM_STEPS, CELLS = 40, [176, 64]


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """It stops before the line."""
    environment = EnvironmentConfig(
        id="approaching", entry_point="approaching:Approaching", path=APPROACHING, max_episode_steps=NUM_STEPS
    )
    training = TrainingConfig(total_env_steps=30_000, parameters={"num_envs": 8, "rollout_length": 128})
    return evaluate(train(tmp_path_factory.mktemp("careful"), environment, training), EVALUATION)


@pytest.fixture(scope="module")
def described(careful: Policy) -> Abstraction:
    env: Any = make_env(careful.environment)
    found: Abstraction = env.unwrapped.abstraction()
    return found


def settings(**abstraction: Any) -> SafetyConfig:
    checks = without_long_searches(abstraction={"cells": CELLS, **abstraction}, minimum_return={"threshold": -30})
    return SafetyConfig(num_episodes=32, checks=checks)


def claim_of(case: Any) -> Claim:
    (claim,) = [one for one in case.claims if one.id == "abstraction"]
    return claim  # type: ignore[no-any-return]


def test_what_is_proved_is_said_with_its_bound(careful: Policy, tmp_path: Path) -> None:
    case = examine(careful, tmp_path / "safety", settings(max_probability=0.01))
    claim = claim_of(case)
    assert claim.verdict is Verdict.PROVED
    assert claim.bound is not None
    assert 0.0 < claim.bound.measured < 0.01
    assert case.decision.passed


def test_coarse_cells_leave_it_open_and_that_blocks(careful: Policy, tmp_path: Path) -> None:
    case = examine(careful, tmp_path / "safety", settings(cells=[22, 8], max_probability=0.01))
    assert claim_of(case).verdict is Verdict.UNDECIDED
    assert "more cells may bring it down" in claim_of(case).finding
    assert case.decision.blocking == ["abstraction"]


@pytest.mark.long
def test_the_graph_that_ships_is_asked_too(careful: Policy, tmp_path: Path) -> None:
    graph = tmp_path / "policy.onnx"
    graph.write_bytes(build_graph(load_policy(careful.training), 17))
    session = open_session(graph, "careful")

    class Exported:
        def __init__(self) -> None:
            self.graph = graph.read_bytes()

        def __call__(self, obs: Any) -> Any:
            return session.run(["action"], {session.get_inputs()[0].name: obs})[0]

    verdicts = recheck_local(Exported(), settings(max_probability=0.01), careful.environment, careful.evaluation)
    assert verdicts["abstraction"] is Verdict.PROVED


@pytest.mark.parametrize("brakes_at", [10.0, 11.0, 12.5])
def test_no_more_happens_than_the_bound_says(described: Abstraction, careful: Policy, brakes_at: float) -> None:
    """Brake from so many metres on, which on ice may be too late. 4,000 episodes are played beside it."""

    def possible(low: Any, high: Any) -> Any:
        may_roll, may_brake = high[:, 0] > brakes_at, low[:, 0] <= brakes_at
        box = np.concatenate([np.flatnonzero(may_roll), np.flatnonzero(may_brake)])
        action = np.concatenate([np.zeros(may_roll.sum()), np.ones(may_brake.sum())])[:, None]
        return box, action, action

    bound = worst_case(described, CELLS, possible, NUM_STEPS).probability
    env = make_env(careful.environment)
    crossed = 0
    for seed in range(4_000):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            obs, _, terminated, truncated, _ = env.step(int(obs[0] <= brakes_at))
            over = terminated or truncated
        crossed += bool(obs[0] < 0.0)
    share = crossed / 4_000
    assert share <= bound + 3 * np.sqrt(share * (1 - share) / 4_000)
    assert 0.0 < bound < 0.5


def test_every_state_that_is_played_lies_in_the_boxes_that_were_said(described: Abstraction, careful: Policy) -> None:
    env: Any = make_env(careful.environment)
    rng = np.random.default_rng(0)
    for seed in range(50):
        env.reset(seed=seed)
        over = False
        while not over:
            low = env.unwrapped.state - rng.uniform(0.0, 0.2, 2)
            high = env.unwrapped.state + rng.uniform(0.0, 0.2, 2)
            action = int(rng.integers(2))
            *_, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            ranges = np.array([[float(action)]])
            outcomes = described.successors(low[None], high[None], ranges, ranges)
            state = env.unwrapped.state
            assert any(((begin <= state) & (state <= end)).all() for _, begin, end in outcomes)


def played(seed: int = 3) -> Episode:
    """Rolls, then brakes until it stops, as the environment does it."""
    gap, speed, states, actions = 31.0, 6.5, [], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    for action in actions:
        states.append([gap, speed])
        speed = max(0.0, speed - 1.5 * action)
        gap -= 0.5 * speed
    states.append([gap, speed])
    obs = np.array(states, np.float32)
    nothing = np.zeros(len(actions))
    return Episode(seed, obs[:-1], np.array(actions), nothing, obs[1:], terminated=True, truncated=False, info={})


def off_by(outcomes: Any, by: float) -> Any:
    return lambda *box: [(share, begin + by, end + by) for share, begin, end in outcomes(*box)]


def test_what_was_played_must_lie_in_the_boxes(described: Abstraction) -> None:
    demand_held(described, [played()], "Road")
    demand_held(replace(described, successors=off_by(described.successors, 1e-7)), [played()], "Road")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial_high": np.array([30.5, 7.0])}, r"step 0 of .* seed 3 it begins with \[31.0, 6.5\], .*initial_low"),
        ({"ended": lambda low, high: high[:, 1] < 1.0}, r"step 9 of .* it goes on after \[9.25, 0.5\], .*\.ended"),
        ({"by": 1e-3}, r"Road: in step 0 of .* a step leads to \[27.75, 6.5\], .*successors says does not happen"),
    ],
)
def test_what_was_played_and_lies_in_no_box_is_named(
    described: Abstraction, change: dict[str, Any], message: str
) -> None:
    by = change.get("by", 0.0)
    others = {key: value for key, value in change.items() if key != "by"}
    wrong = replace(described, successors=off_by(described.successors, by), **others)
    with pytest.raises(ConfigError, match=message):
        demand_held(wrong, [played()], "Road")


def test_no_action_that_is_taken_is_left_out(careful: Policy) -> None:
    policy = load_policy(careful.training)
    possible = possible_actions(network_of(policy, spaces.Discrete(2)).network, spaces.Discrete(2))
    rng = np.random.default_rng(0)
    low = rng.uniform([0.0, 0.0], [39.0, 7.5], (300, 2))
    high = low + rng.uniform(0.0, 0.3, low.shape)
    box, least, most = possible(low, high)
    np.testing.assert_array_equal(least, most)
    known = set(zip(box.tolist(), least[:, 0].astype(int).tolist(), strict=True))
    taken = policy(rng.uniform(low, high, (40, 300, 2)).reshape(-1, 2).astype(np.float32)).reshape(40, 300)
    assert {(index, int(action)) for row in taken for index, action in enumerate(row)} <= known
    assert len(known) < 400, "the bounds exclude what is never taken"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cells": [10]}, r"safety\.checks\.abstraction\.cells: found \[10\]; give 2 numbers, each at least 1"),
        ({"cells": [10, 0]}, "each at least 1"),
        ({"cells": [10_000, 10_000]}, "are 100000000 cells; at most 5000000 are held"),
    ],
)
def test_cells_that_do_not_fit_are_refused_before_training(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_spaces(AbstractionConfig.model_validate(values), spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2))


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.uint8])
def test_observations_that_round_the_state_are_refused_before_training(dtype: Any) -> None:
    config = AbstractionConfig.model_validate({"cells": [10]})
    with pytest.raises(ConfigError, match=rf"cells: observations are {np.dtype(dtype)}, which rounds states"):
        check_spaces(config, spaces.Box(0, 9, (1,), dtype), spaces.Discrete(2))
    check_spaces(config, spaces.Box(0, 9, (1,), np.float64), spaces.Discrete(2))


def test_an_environment_that_describes_no_boxes_is_refused(good: Policy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no method abstraction\(\)"):
        examine(good, tmp_path / "safety", settings(cells=[2, 2, 2, 2]))

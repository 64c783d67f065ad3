"""What a log says does not depend on how its episodes came to be selected, or it says nothing."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import estimate
from loomrl.promotion.comparison.off_policy.weights import contradicts_one
from loomrl.promotion.comparison.window import WindowEpisode
from tests.support.simulated_logs import CHALLENGER, CHAMPION, MOVES_ON, STAYS, Bandit, Chain, episode, greedy

KNOWN = {"reward_range": (-0.5, 1.0), "max_steps": 3, "min_effective_sample_size": 10.0}


def mixture(observations: np.ndarray, weights: np.ndarray, epsilon: float, share: float) -> np.ndarray:
    own, drawn = greedy(observations, weights), greedy(observations, weights, epsilon)
    return np.asarray((1 - share) * own + share * drawn)


def shared_log(number: int, share: float = 0.3) -> list[WindowEpisode]:
    """Nobody asks; the champion stays where it is paid, and moves on where a draw says so."""
    rng, chances = np.random.default_rng(5), partial(mixture, weights=STAYS, epsilon=1.0, share=share)
    log = []
    for one in Chain().log(rng, number, chances):
        explored = [chance < 0.5 or bool(rng.random() < share / (2 - share)) for chance in one.propensities]
        log.append(replace(one, explored=explored, asked=[False] * len(explored)))
    return log


def test_episodes_of_the_servers_share_are_weighed_as_they_came_about(linear: Any) -> None:
    truth = Chain().value(partial(greedy, weights=MOVES_ON)) - Chain().value(partial(greedy, weights=STAYS))
    report = estimate(
        "p", shared_log(4_000), linear(STAYS, "1"), linear(MOVES_ON, "2"), OffPolicyConfig.model_validate(KNOWN)
    )
    assert report.refused == ""
    assert report.improvement is not None
    assert report.improvement.value == pytest.approx(truth, abs=0.15)
    assert report.improvement.low is not None
    assert report.improvement.low < truth < 0.0
    assert (report.num_episodes, report.left_out) == (4_000, {})


def test_a_log_that_was_selected_by_the_draw_contradicts_its_weights(linear: Any) -> None:
    """As one whose writer kept only what was explored."""
    log = [one for one in shared_log(6_000, share=0.5) if all(one.explored)]
    report = estimate("p", log, linear(STAYS, "1"), linear(MOVES_ON, "2"), OffPolicyConfig.model_validate(KNOWN))
    assert "in the mean, which contradicts 1" in report.refused
    assert report.improvement is None


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_wrong_propensities_contradict_the_weights_on_both_sides(linear: Any, factor: float) -> None:
    log = Bandit().log(np.random.default_rng(6), 2_000, partial(greedy, weights=CHAMPION, epsilon=0.4))
    for one in log:
        one.propensities = [min(chance * factor, 0.99) for chance in one.propensities]
    settings = OffPolicyConfig(min_effective_sample_size=10.0)
    report = estimate("p", log, linear(CHAMPION, "1"), linear(CHALLENGER, "2"), settings)
    assert "contradicts 1" in report.refused or "less probable than by chance" in report.refused


def test_right_weights_are_not_contradicted_however_wide() -> None:
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(200):
        weights = rng.lognormal(-0.5 * 1.2**2, 1.2, 400)
        wrong += contradicts_one(weights, None)
        wrong += contradicts_one(rng.choice([0.0, 20.0], 400, p=[0.95, 0.05]), 20.0)
        wrong += contradicts_one(rng.choice([0.97, 40.0], 100, p=[0.9992, 0.0008]), None)  # hardly ever is 40 seen
    assert wrong <= 6  # of 600


def test_where_agents_stop_asking_the_log_ends_unless_both_versions_would_go_on_alike(linear: Any) -> None:
    """The agent asks in its first decision only: in the second, the champion's choice is certain."""
    first, certain = ([0.0, 1.0, 1.0, 0.0], 1, 0.6, 1.0), ([1.0, 0.0, 1.0, 0.0], 0, 1.0, 1.0)
    log = [episode([first, certain], explored=[True, False])] * 100
    settings = OffPolicyConfig(min_effective_sample_size=5.0)
    alike = estimate("p", log, linear(STAYS, "1"), linear(3 * STAYS, "2"), settings)
    assert "not ended" not in alike.refused
    other = estimate("p", log, linear(STAYS, "1"), linear(MOVES_ON, "2"), settings)
    assert "100 of 100 episodes have not ended, lack feedback, or went on without what the version" in other.refused
    assert "serving.exploration.share" in other.refused


def test_what_is_not_known_counts_as_the_worst(linear: Any) -> None:
    """By hand: weights of 1, two steps, rewards from 0 to 1. One in ten episodes has not ended after a step."""
    step = ([0.0, 1.0, 1.0, 0.0], 1, 1.0, 1.0)
    whole = [episode([step, step], explored=[False] * 2)] * 90
    early = [episode([step], explored=[False], ended=False, terminated=False)] * 10
    settings = OffPolicyConfig(reward_range=(0.0, 1.0), max_steps=2)
    policies = linear(MOVES_ON, "1"), linear(2 * MOVES_ON, "2")
    known, both = (estimate("p", log, *policies, settings) for log in (whole + whole[:10], whole + early))
    assert both.incomplete == {"has not ended": 10}
    assert any("10 episodes that were not seen whole" in one for one in both.assumptions)
    values = [{one.estimator: one for one in report.estimates}["importance sampling"] for report in (known, both)]
    assert (values[0].value, values[1].value) == (2.0, 1.9)
    assert None not in (values[0].low, values[1].low)
    assert (values[1].low or 0.0) < (values[0].low or 0.0)
    assert known.improvement is not None
    assert both.improvement is not None
    assert (both.improvement.low or 0.0) <= (known.improvement.low or 0.0) - 0.09  # a tenth, by a step that pays 1
    assert (both.improvement.high or 0.0) >= (known.improvement.high or 0.0) + 0.09


def test_claims_about_other_agents_take_agents_as_units(linear: Any) -> None:
    log = Bandit().log(np.random.default_rng(8), 1_000, partial(greedy, weights=CHAMPION, epsilon=0.4))
    log = [replace(one, agent_id=str(number % 10)) for number, one in enumerate(log)]
    policies, known = (linear(CHAMPION, "1"), linear(CHALLENGER, "2")), {"reward_range": (0.0, 1.0)}
    here, others = (
        estimate("p", log, *policies, OffPolicyConfig.model_validate(known | {"units": units}))
        for units in ("episodes", "agents")
    )
    assert here.num_agents == others.num_agents == 10
    assert "bounds are about the 10 agents in the log" in " ".join(here.assumptions)
    assert "the 10 agents are a sample of all" in " ".join(others.assumptions)
    for one, other in zip(here.estimates, others.estimates, strict=True):
        assert (one.low is None) == (other.low is None)
        if one.low is not None and other.low is not None:
            assert other.low < one.low, "ten values say less than a thousand"


def test_no_episode_may_be_longer_than_declared(linear: Any) -> None:
    settings = OffPolicyConfig(max_steps=2)
    with pytest.raises(ConfigError, match="max_steps is 2, but the log has an episode of 3; raise it"):
        estimate("p", shared_log(200), linear(STAYS, "1"), linear(MOVES_ON, "2"), settings)


@pytest.mark.parametrize("leaves_after_success", [True, False])
def test_agents_that_leave_for_what_came_of_their_episodes_are_no_sample(
    linear: Any, leaves_after_success: bool
) -> None:
    """One decision an episode, which succeeds in one of five whatever is done; an agent has up to thirty of them."""
    rng, log = np.random.default_rng(3), []
    for agent in range(150):
        most = 30 if leaves_after_success else int(rng.geometric(0.2))
        for _ in range(most):
            succeeded = bool(rng.random() < 0.2)
            told = {"agent_id": f"{agent}", "asked": [True], "explored": [True]}
            log.append(episode([([1.0, 0.0, 0.0, 0.0], int(rng.random() < 0.5), 0.5, float(succeeded))], **told))
            if succeeded and leaves_after_success:
                break
    asked = {"reward_range": (0.0, 1.0), "max_steps": 1, "min_effective_sample_size": 5.0, "min_propensity": 0.5}
    here, others = (
        estimate("p", log, linear(CHAMPION, "1"), linear(CHALLENGER, "2"), OffPolicyConfig(**asked, units=units))
        for units in ("episodes", "agents")
    )
    assert not here.refused
    assert ("set units: episodes" in others.refused) == leaves_after_success
    assert "how many episodes an agent has does not depend on what came of them" in others.assumptions

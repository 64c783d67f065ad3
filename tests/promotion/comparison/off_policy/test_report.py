"""What is estimated, what is refused with its reason, and what contradicts the log."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import Estimate, OffPolicyReport, estimate
from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import ServedPolicy
from tests.support.policies import continuous_folder
from tests.support.simulated_logs import CHALLENGER, CHAMPION, Bandit, episode, greedy


def by_name(report: OffPolicyReport) -> dict[str, Estimate]:
    return {one.estimator: one for one in report.estimates}


def bandit_log(number: int, epsilon: float, seed: int = 1, **changes: Any) -> list[Any]:
    log = Bandit().log(np.random.default_rng(seed), number, partial(greedy, weights=CHAMPION, epsilon=epsilon))
    for one in log:
        for name, value in changes.items():
            setattr(one, name, value)
        one.asked = one.explored
    return log


def test_without_exploration_another_challenger_is_refused_with_the_fix(linear: Any) -> None:
    log = bandit_log(500, 0.0, explored=[False])
    report = estimate("p", log, linear(CHAMPION, "1"), linear(CHALLENGER, "2"), OffPolicyConfig())
    assert "version 1 decided without exploration, every propensity is 1" in report.refused
    assert 'send "explore": true' in report.refused
    assert by_name(report)["fitted Q"].refused == report.refused
    assert (report.improvement, report.num_episodes) == (None, 500)


def test_without_exploration_a_challenger_that_chooses_alike_earns_the_same(linear: Any) -> None:
    log = bandit_log(500, 0.0, explored=[False])
    report = estimate("p", log, linear(CHAMPION, "1"), linear(2 * CHAMPION, "2"), OffPolicyConfig())
    assert report.improvement is not None
    assert (report.improvement.value, report.mean_weight, report.effective_sample_size) == (0.0, 1.0, 500.0)
    found = by_name(report)
    assert {found[name].value for name in ("importance sampling", "self-normalised")} == {report.logged_mean}
    assert all(
        one.low is not None and one.low < report.logged_mean for name, one in found.items() if name != "fitted Q"
    )


def test_few_effective_episodes_are_refused_not_estimated(linear: Any) -> None:
    log = bandit_log(200, 0.1)
    report = estimate("p", log, linear(CHAMPION, "1"), linear(-CHAMPION, "2"), OffPolicyConfig())
    assert report.effective_sample_size is not None
    assert report.effective_sample_size < 50
    assert "fewer than min_effective_sample_size = 50" in report.refused
    assert [one.value for one in report.estimates] == [None]
    allowed = OffPolicyConfig(min_effective_sample_size=1.0)
    assert not estimate("p", log, linear(CHAMPION, "1"), linear(-CHAMPION, "2"), allowed).refused


def test_weights_of_long_episodes_are_refused_too(linear: Any) -> None:
    steps = [([1.0, 0.0, 0.0, 0.0], 0, 0.05, 1.0)] * 400
    report = estimate("p", [episode(steps)] * 10, linear(CHAMPION, "1"), linear(CHAMPION, "2"), OffPolicyConfig())
    assert "explored so that its own choice was less probable than by chance" in report.refused
    common = [(steps[0][0], 0, 0.5, 1.0)] * 1_100
    longer = estimate("p", [episode(common)] * 10, linear(CHAMPION, "1"), linear(CHAMPION, "2"), OffPolicyConfig())
    assert "the weights of episodes of up to 1100 steps are beyond all numbers" in longer.refused


def test_bounds_of_what_weighs_losses_need_the_least_propensity(linear: Any) -> None:
    log, policies = bandit_log(400, 0.2), (linear(CHAMPION, "1"), linear(CHALLENGER, "2"))
    without = by_name(estimate("p", log, *policies, OffPolicyConfig()))
    known = by_name(estimate("p", log, *policies, OffPolicyConfig(min_propensity=0.1)))
    for name in ("self-normalised", "doubly robust"):
        assert (without[name].low, "set min_propensity" in without[name].no_bound) == (None, True)
        assert known[name].low is not None
        assert known[name].low < (known[name].value or 0.0)
        assert known[name].value == without[name].value
    assert known["fitted Q"].no_bound
    with pytest.raises(ConfigError, match=r"min_propensity is 0.2, but the log has a propensity of 0.1; lower it"):
        estimate("p", log, *policies, OffPolicyConfig(min_propensity=0.2))


def test_assumptions_are_told(linear: Any) -> None:
    log, policies = bandit_log(400, 0.2), (linear(CHAMPION, "1"), linear(CHALLENGER, "2"))
    assumed = estimate("p", log, *policies, OffPolicyConfig()).assumptions
    declared = estimate("p", log, *policies, OffPolicyConfig(reward_range=(-1.0, 1.0))).assumptions
    assert any("no reward is below 0 or above 1" in one for one in assumed)
    assert any("no episode is longer than the longest in the log, 1 steps" in one for one in declared)


def test_sampling_is_compared_only_with_a_champion_that_was_sampled(linear: Any) -> None:
    settings = OffPolicyConfig(acting="sampled")
    report = estimate("p", bandit_log(400, 0.2), linear(CHAMPION, "1"), linear(CHALLENGER, "2"), settings)
    assert "propensities are not those of version 1's own distribution" in report.refused


@pytest.fixture
def torques(tmp_path: Path) -> tuple[ServedPolicy, ServedPolicy]:
    """Means 0.5 and 0.3 times the first two numbers, spread exp(-1), clipped to [-1, 1]."""
    folders = [continuous_folder(tmp_path / str(gain), gain) for gain in (0.5, 0.3)]
    return ServedPolicy.load(folders[0], "1"), ServedPolicy.load(folders[1], "2")


def torque_log(champion: ServedPolicy, number: int) -> list[Any]:
    """Rewarded by how near the first torque is to 0.3 times the first number."""
    rng = np.random.default_rng(8)
    observations = rng.uniform(-1, 1, (number, 4)).astype(np.float32)
    answer = champion.answer(observations)
    log = []
    for index, observation in enumerate(observations):
        sample = explore(champion, answer, index, rng)
        earned = 1.0 - (float(sample.action[0]) - 0.3 * float(observation[0])) ** 2
        log.append(episode([(observation.tolist(), sample.action.tolist(), sample.propensity, earned)]))
    return log


def test_one_torque_among_a_continuum_is_weighed_by_nothing_but_a_model(torques: Any) -> None:
    report = estimate("p", torque_log(torques[0], 1_500), *torques, OffPolicyConfig())
    assert "one choice among a continuum has no density" in report.refused
    assert "`acting: sampled`" in report.refused
    fitted = by_name(report)["fitted Q"]
    assert fitted.value == pytest.approx(1.0, abs=0.04)  # its choice is what is rewarded
    assert fitted.low is None


def test_sampled_torques_are_weighed_by_densities_clipped_ones_by_what_lies_beyond(torques: Any) -> None:
    log = torque_log(torques[0], 3_000)
    report = estimate("p", log, *torques, OffPolicyConfig(acting="sampled"))
    assert any(abs(value) == 1.0 for one in log for value in one.actions[0])
    noise = np.clip(np.random.default_rng(9).normal(0.0, np.exp(-1.0), 200_000), -1, 1)
    assert by_name(report)["self-normalised"].value == pytest.approx(1.0 - np.mean(noise**2), abs=0.03)
    assert report.mean_weight == pytest.approx(1.0, abs=0.05)
    assert report.improvement is not None
    assert report.improvement.low is not None


def test_other_kinds_of_actions_are_no_comparison(linear: Any, torques: Any) -> None:
    report = estimate("p", bandit_log(100, 0.2), linear(CHAMPION, "1"), torques[1], OffPolicyConfig())
    assert "the champion's actions are discrete, {" in report.refused
    assert "the challenger's continuous, {" in report.refused
    three = linear(np.ones((4, 3), np.float32), "2")
    report = estimate("p", bandit_log(100, 0.2), linear(CHAMPION, "1"), three, OffPolicyConfig())
    assert "'n': 3" in report.refused


def test_an_empty_log_is_refused_in_words(linear: Any) -> None:
    report = estimate("p", [], linear(CHAMPION, "1"), linear(CHALLENGER, "2"), OffPolicyConfig())
    assert "no whole episode that version 1 alone decided" in report.refused
    assert OffPolicyReport.model_validate(report.to_json()) == report


def test_episodes_may_be_so_long_that_no_number_holds_what_they_could_weigh(linear: Any) -> None:
    log = bandit_log(400, 0.2)
    settings = OffPolicyConfig(max_steps=5_000, reward_range=(0.0, 1.0), min_propensity=0.1)
    report = estimate("p", log, linear(CHAMPION, "1"), linear(CHALLENGER, "2"), settings)
    assert not report.refused
    assert report.improvement is not None
    assert report.improvement.low is None, "bounds would need the greatest weight"

"""What is read from an audit log for an estimate, and what is left out."""

from dataclasses import replace

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import CannotEstimate, read_logged, reward_range
from loomrl.promotion.comparison.window import read_window
from loomrl.storage.audit.log import AuditLog
from tests.support.live import decide, reward
from tests.support.simulated_logs import episode

STEP = ([0.1, 0.2, 0.3, 0.4], 1, 0.5, 2.0)
CERTAIN = ([0.1, 0.2, 0.3, 0.4], 1, 1.0, 2.0)
TENTH = OffPolicyConfig(max_left_out_share=0.1)


def test_an_audit_log_is_read_with_its_propensities(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in range(3):
        for step in range(2):
            told = {"action": step, "exploration_flag": True, "propensity": 0.25 + 0.5 * step}
            decision = decide(log, "a", str(number), [float(number), float(step), 0.0, 0.0], **told)
            reward(log, decision, "a", str(number), 10.0 * number + step, ended=step == 1)
    logged, *without = read_logged(read_window("cartpole", {}, []).episodes, "1", TENTH)
    assert (logged.explored, without, logged.lengths.tolist()) == (True, [{}, {}], [2, 2, 2])
    assert logged.terminated.all()
    assert logged.padded(logged.reward, 0.0).tolist() == [[0, 1], [10, 11], [20, 21]]
    assert logged.propensity.tolist() == [0.25, 0.75] * 3
    assert logged.action.tolist() == [0, 1] * 3
    assert logged.observation[:, 1].tolist() == logged.step.tolist() == [0, 1] * 3


def test_episodes_of_different_length_are_filled_up() -> None:
    logged, *_ = read_logged([episode([STEP] * 3), episode([STEP])], "1", TENTH)
    assert logged.padded(logged.propensity, 1.0).tolist() == [[0.5, 0.5, 0.5], [0.5, 1.0, 1.0]]


def test_what_is_left_out_or_not_seen_whole_is_counted_by_reason() -> None:
    cut = replace(episode([STEP]), cut=True)
    taken_over = episode([STEP] * 2, deciders=["1", None])
    other_first = episode([STEP] * 2, deciders=["2", "1"])
    held = episode([STEP] * 2, deciders=[None, "1"])
    unfinished = episode([STEP], ended=False)
    unrewarded = episode([STEP] * 2)
    unrewarded.rewards["0"] = None
    some = [episode([STEP])] * 40 + [episode([CERTAIN], explored=[False])]
    logged, left_out, incomplete = read_logged(
        [*some, cut, taken_over, other_first, held, unfinished, unrewarded], "1", TENTH
    )
    assert logged.lengths.tolist() == [1] * 40 + [1, 1, 2]
    assert logged.is_whole.tolist() == [True] * 40 + [False, False, True]
    assert logged.is_known.tolist() == [True] * 42 + [False, True]
    assert left_out == {"began before the log": 1, "others decided in it first": 2, "not explored": 1}
    assert incomplete == {"others decided in it later": 1, "has not ended": 1, "lacks feedback": 1}


def test_nothing_is_selected_by_what_was_drawn() -> None:
    """A share of 0.2, drawn for each decision: all episodes count, with the mixture's propensities."""
    drawn, greedy = ([0.1] * 4, 1, 0.1, 2.0), ([0.1] * 4, 0, 0.9, 2.0)
    some = [
        episode([drawn, greedy], explored=[True, False], asked=[False] * 2),
        episode([greedy, greedy], explored=[False, False], asked=[False] * 2),
        episode([drawn, drawn], explored=[True, True], asked=[False] * 2),
    ]
    logged, left_out, incomplete = read_logged(some * 5, "1", TENTH)
    assert (len(logged.lengths), logged.explored, left_out, incomplete) == (15, True, {}, {})
    assert logged.propensity[:6].tolist() == [0.1, 0.9, 0.9, 0.9, 0.1, 0.1]


def test_where_enough_episodes_were_asked_for_those_are_taken() -> None:
    """They are known by what the agent asked at the first decision; what it asks later leaves none out."""
    unasked = episode([STEP], explored=[False], asked=[False])
    stopped = episode([STEP, CERTAIN], explored=[True, False], asked=[True, False])
    logged, left_out, _ = read_logged([stopped] * 50 + [unasked] * 200, "1", TENTH)
    assert (logged.lengths.tolist(), left_out) == ([2] * 50, {"not asked to explore": 200})
    logged, left_out, _ = read_logged([stopped] * 49 + [unasked] * 200, "1", TENTH)
    assert (len(logged.lengths), left_out) == (249, {})


def test_of_a_continuum_only_what_was_asked_for_counts_until_the_agent_stops_asking() -> None:
    unasked = episode([STEP], explored=[False], asked=[False])
    stopped = episode([STEP, STEP], explored=[True, False], asked=[True, False])
    whole = episode([STEP, STEP])
    logged, left_out, incomplete = read_logged([whole] * 19 + [stopped, unasked], "1", TENTH, chooses=False)
    assert logged.lengths.tolist() == [2] * 19 + [1]
    assert (left_out, incomplete) == ({"not asked to explore": 1}, {"others decided in it later": 1})


def test_a_fallback_in_place_of_what_was_drawn_is_no_choice_of_the_challengers() -> None:
    shielded = replace(episode([STEP]), fallbacks=[True])
    with pytest.raises(CannotEstimate, match="a shield had the fallback act in place of actions that were drawn"):
        read_logged([episode([STEP])] * 50 + [shielded], "1", TENTH)
    certain = replace(episode([STEP, CERTAIN]), fallbacks=[False, True])
    assert len(read_logged([episode([STEP])] * 50 + [certain], "1", TENTH)[0].lengths) == 51


def test_too_little_feedback_is_no_log_and_neither_is_none() -> None:
    silent = [episode([STEP], ended=False)] * 3
    with pytest.raises(CannotEstimate, match="3 of 12 episodes have not ended, lack feedback, or went on"):
        read_logged([episode([STEP])] * 9 + silent, "1", TENTH)
    assert (
        len(read_logged([episode([STEP])] * 9 + silent, "1", OffPolicyConfig(max_left_out_share=0.25))[0].lengths) == 12
    )
    with pytest.raises(CannotEstimate, match="no whole episode that version 1 alone decided: 3 has not ended"):
        read_logged(silent, "1", TENTH)
    with pytest.raises(CannotEstimate, match="it has none of this version at all"):
        read_logged(silent, "7", TENTH)


def test_without_exploration_the_versions_own_choices_are_read() -> None:
    logged, *without = read_logged([episode([CERTAIN], explored=[False])], "1", TENTH)
    assert (logged.explored, without) == (False, [{}, {}])


def test_parts_of_a_log_keep_together_what_belongs_together() -> None:
    some = [replace(episode([(*STEP[:3], float(n))] * n), agent_id=str(n % 2)) for n in (3, 1, 2)]
    logged, *_ = read_logged(some, "1", TENTH)
    newest = logged.newest(3)
    assert (newest.lengths.tolist(), newest.agent.tolist()) == ([1, 2], [0, 1])
    assert newest.reward.tolist() == [1.0, 2.0, 2.0]
    first = logged.until(np.array([1, 1, 2]))
    assert (first.lengths.tolist(), first.is_whole.tolist()) == ([1, 1, 2], [False, True, True])
    assert (first.reward.tolist(), first.terminated.tolist()) == ([3.0, 1.0, 2.0, 2.0], [False, True, True])


def test_rewards_lie_in_a_range_with_0_in_it() -> None:
    logged, *_ = read_logged([episode([(*STEP[:3], value)]) for value in (2.0, 5.0)], "1", TENTH)
    assert reward_range(logged, None) == (0.0, 5.0)
    assert reward_range(logged, (1.0, 9.0)) == (0.0, 9.0)
    with pytest.raises(ConfigError, match=r"reward_range is \[0, 4\], but the log has a reward of 5; widen it"):
        reward_range(logged, (0.0, 4.0))
    assert np.isfinite(logged.reward).all()

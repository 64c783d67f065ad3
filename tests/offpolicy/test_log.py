"""What is read from an audit log for an estimate, and what is left out."""

from dataclasses import replace

import numpy as np
import pytest
from live import decide, reward
from simulated_logs import episode

from loomrl.errors import ConfigError
from loomrl.monitoring.window import read_window
from loomrl.offpolicy.log import CannotEstimate, read_logged, reward_range
from loomrl.serving.audit import AuditLog

STEP = ([0.1, 0.2, 0.3, 0.4], 1, 0.5, 2.0)


def test_an_audit_log_is_read_with_its_propensities(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in range(3):
        for step in range(2):
            told = {"action": step, "exploration_flag": True, "propensity": 0.25 + 0.5 * step}
            decision = decide(log, "a", str(number), [float(number), float(step), 0.0, 0.0], **told)
            reward(log, decision, "a", str(number), 10.0 * number + step, ended=step == 1)
    logged, left_out = read_logged(read_window("cartpole", {}, []).episodes, "1", 0.1)
    assert (logged.explored, left_out, logged.lengths.tolist()) == (True, {}, [2, 2, 2])
    assert logged.terminated.all()
    assert logged.padded(logged.reward, 0.0).tolist() == [[0, 1], [10, 11], [20, 21]]
    assert logged.propensity.tolist() == [0.25, 0.75] * 3
    assert logged.action.tolist() == [0, 1] * 3
    assert logged.observation[:, 1].tolist() == logged.step.tolist() == [0, 1] * 3


def test_episodes_of_different_length_are_filled_up() -> None:
    logged, _ = read_logged([episode([STEP] * 3), episode([STEP])], "1", 0.0)
    assert logged.padded(logged.propensity, 1.0).tolist() == [[0.5, 0.5, 0.5], [0.5, 1.0, 1.0]]


def test_what_is_left_out_is_counted_by_reason() -> None:
    cut = replace(episode([STEP]), cut=True)
    several = episode([STEP] * 2)
    several.versions.add("2")
    in_part = episode([STEP] * 2, explored=[True, False])
    unfinished = episode([STEP], ended=False)
    unrewarded = episode([STEP] * 2)
    unrewarded.rewards["0"] = None
    others = [cut, several, episode([STEP], overridden=True), in_part, unfinished, unrewarded]
    logged, left_out = read_logged([episode([STEP])] * 20 + [episode([STEP], explored=[False])] + others, "1", 0.1)
    assert len(logged.lengths) == 20
    assert left_out == {
        "began before the log": 1,
        "others decided in it": 2,
        "has not ended": 1,
        "lacks feedback": 1,
        "explored in part": 1,
        "not explored": 1,
    }


def test_too_little_feedback_is_no_log_and_neither_is_none() -> None:
    silent = [episode([STEP], ended=False)] * 3
    with pytest.raises(CannotEstimate, match="3 of 12 episodes have not ended or lack feedback, more than 10%"):
        read_logged([episode([STEP])] * 9 + silent, "1", 0.1)
    assert len(read_logged([episode([STEP])] * 9 + silent, "1", 0.25)[0].lengths) == 9
    with pytest.raises(CannotEstimate, match="no whole episode that version 1 alone decided: 3 has not ended"):
        read_logged(silent, "1", 0.1)
    with pytest.raises(CannotEstimate, match="it has none of this version at all"):
        read_logged(silent, "7", 0.1)


def test_without_exploration_the_versions_own_choices_are_read() -> None:
    logged, left_out = read_logged([episode([STEP], explored=[False])], "1", 0.1)
    assert (logged.explored, left_out) == (False, {})


def test_rewards_lie_in_a_range_with_0_in_it() -> None:
    logged, _ = read_logged([episode([(*STEP[:3], value)]) for value in (2.0, 5.0)], "1", 0.1)
    assert reward_range(logged, None) == (0.0, 5.0)
    assert reward_range(logged, (1.0, 9.0)) == (0.0, 9.0)
    with pytest.raises(ConfigError, match=r"reward_range is \[0, 4\], but the log has a reward of 5; widen it"):
        reward_range(logged, (0.0, 4.0))
    assert np.isfinite(logged.reward).all()

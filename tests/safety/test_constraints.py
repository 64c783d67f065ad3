"""Quantities and limits on a small episode, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import check_constraint, limits, violates, violations, would_violate
from loomrl.types import Episode

STATES = np.array([[0.0, 9.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])  # the reset's observation, then one per step
EPISODE = Episode(
    seed=5,
    obs=STATES[:-1],
    action=np.array([[-0.5, 0.5], [0.0, 0.0], [1.0, 2.0]]),
    reward=np.array([1.0, -2.0, 4.0]),
    next_obs=STATES[1:],
    terminated=True,
    truncated=False,
    info={"cost": np.array([0.3, 0.0, 1.0]), "heat": np.array([0.0, np.nan, 1.0]), "speed": np.array([1.0, 2.0, 3.0])},
)


def constraint(
    quantity: str, low: float | None = None, high: float | None = None, per: str = "episode"
) -> ConstraintConfig:
    return ConstraintConfig.model_validate(
        {"name": "limit", "quantity": quantity, "low": low, "high": high, "per": per}
    )


@pytest.mark.parametrize(
    ("quantity", "low", "high", "expected"),
    [
        ("observation[0]", None, 2.0, [False, False, True]),  # counts at the step that leads to it
        ("observation[1]", None, 5.0, [True, False, False]),  # the reset's observation counts at the first step
        ("action[1]", 0.0, 1.0, [False, False, True]),
        ("reward", 0.0, None, [False, True, False]),
        ("return", 4.0, None, [False, False, True]),
        ("return", 3.0, None, [False, False, False]),
        ("length", 4.0, None, [False, False, True]),
        ("length", None, 3.0, [False, False, False]),
        ("info.speed", 2.0, 2.0, [True, False, True]),
        ("info.heat", None, 0.5, [False, True, True]),  # NaN is not known to respect the limit
        ("cost", None, 0.5, [False, False, True]),
        ("episode_cost", None, 1.2, [False, False, True]),  # 0.3 and 1.0: known when it has ended
        ("episode_cost", None, 1.3, [False, False, False]),
    ],
)
def test_violating_steps(quantity: str, low: float | None, high: float | None, expected: list[bool]) -> None:
    limit = constraint(quantity, low, high)
    assert violations(limit, EPISODE).tolist() == expected
    assert violates(limit, EPISODE) == any(expected)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (constraint("observation[2]", 0), r"observation\[0\] \.\.\. observation\[1\]"),
        (constraint("action", 0), r"action\[0\] \.\.\. action\[1\]"),
        (
            constraint("info.torque", 0),
            r"no numeric key 'torque' .* seed 5; its keys: info\.cost, info\.heat, info\.speed",
        ),
    ],
)
def test_a_quantity_that_is_not_there(limit: ConstraintConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_constraint(limit, EPISODE)


def test_an_episode_that_does_not_tell_what_others_tell_does_not_keep_the_limit() -> None:
    """A number that is left out of a short episode ends no gate: it is not known to respect the limit."""
    limit, silent = constraint("info.speed", None, 5.0), replace(EPISODE, info={})
    assert violations(limit, silent).all()
    check_constraint(limit, silent, EPISODE)
    with pytest.raises(ConfigError, match=r"no numeric key 'speed' in the episode of seed 5"):
        check_constraint(limit, silent, silent)


def test_would_violate_counts_limits_on_the_action_alone() -> None:
    both = [constraint("action[0]", -1, 0.5), constraint("observation[0]", 100)]
    assert would_violate(both, EPISODE.obs, EPISODE.action).tolist() == [False, False, True]
    assert would_violate([constraint("action", 0, 0)], np.zeros((2, 3)), np.array([0, 1])).tolist() == [False, True]
    assert would_violate([], EPISODE.obs, EPISODE.action).tolist() == [False] * 3


def test_limits_in_words() -> None:
    assert limits(constraint("reward", -2.4, 2.4)) == "within [-2.4, 2.4]"
    assert limits(constraint("reward", None, 25)) == "at most 25"
    assert limits(constraint("reward", 3)) == "at least 3"


def test_a_limit_on_costs_where_none_are_told_is_named() -> None:
    silent = replace(EPISODE, info={})
    for quantity in ("cost", "episode_cost"):
        with pytest.raises(ConfigError, match=r"limit: the environment told no cost in the episode of seed 5"):
            violations(constraint(quantity, None, 1.0), silent)
    with pytest.raises(ValidationError, match="episode_cost is known once per episode"):
        constraint("episode_cost", None, 1.0, per="step")

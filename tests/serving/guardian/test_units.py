"""Bets over agents and within them, against numbers worked out step by step."""

import numpy as np
import pytest

from loomrl.serving.guardian.units import AgentBlocks, num_left_out, over_agents, scales, within_agents

STAKES = np.array([0.9, 0.3, 0.1, 0.03])


def test_so_many_agents_may_be_broken() -> None:
    found = {count: num_left_out(count, is_alone=True) for count in (1, 2, 4, 5, 8, 40, 60, 1_000)}
    assert found == {1: 0, 2: 1, 4: 1, 5: 2, 8: 2, 40: 2, 60: 3, 1_000: 50}
    assert num_left_out(1, is_alone=False) == 1


def test_an_agent_is_one_bet_at_each_scale_and_stake() -> None:
    assert scales(20) == (1, 20, 320, 5_120, 81_920)
    shown = np.array([[1.0, 0.5, 0.1, 0.0, 0.0], [np.nan, 0.2, 0.1, 0.0, 0.0]])
    clean = np.array([1.0, 3.0, 3.0, 3.0, 3.0])
    expected = np.ones((5, 4))
    for row in shown:
        for scale, mean in enumerate(row):
            expected[scale] *= 1.0 if np.isnan(mean) else 1.0 + STAKES * (mean / 0.1 - 1.0)
    expected *= (1.0 - STAKES) ** clean[:, None]
    assert over_agents(shown, clean, 0.1, 0) == pytest.approx(expected.mean())


def test_those_that_say_most_are_left_out_whoever_they_are() -> None:
    rng = np.random.default_rng(1)
    shown, nobody = rng.random((6, 5)), np.zeros(5)
    least = min(
        over_agents(np.delete(shown, [one, other], axis=0), nobody, 0.3, 0) for one in range(6) for other in range(one)
    )
    assert over_agents(shown, nobody, 0.3, 2) <= least * (1 + 1e-9)
    assert over_agents(shown[:2], nobody, 0.3, 2) <= 1.0


def test_fortunes_over_blocks_are_those_of_bets_begun_at_each() -> None:
    rng, block, limit = np.random.default_rng(0), 10, 0.02
    values = (rng.random(200) < 0.05).astype(float)
    blocks, wealth = AgentBlocks(), np.zeros((2, 4))
    for place, value in enumerate(values, start=1):
        if value:
            blocks.add(place, value, block, limit)
    for number in range(1, 21):
        part = values[(number - 1) * block : number * block]
        means = np.array([part[0], part.mean()])
        wealth = (wealth + 1.0 / (number * (number + 1))) * (1.0 + STAKES * (means[:, None] / limit - 1.0))
    assert blocks.fortunes(200, block, limit, takes_first=True) == pytest.approx((wealth + 1.0 / 21).ravel())
    only_blocks = blocks.fortunes(200, block, limit, takes_first=False).reshape(2, 4)
    assert only_blocks == pytest.approx(np.array([np.ones(4), wealth[1] + 1.0 / 21]))


def test_what_is_expected_of_the_evidence_is_at_most_1() -> None:
    """At exactly the limit; half of the agents show all or nothing, half the same share each."""
    rng, found = np.random.default_rng(2), []
    for _ in range(4_000):
        shown = np.where(np.arange(8) < 4, rng.random(8) < 0.2, rng.binomial(20, 0.2, 8) / 20)
        found.append(over_agents(np.repeat(shown[:, None], 5, axis=1), np.zeros(5), 0.2, 0))
    assert np.mean(found) < 1.0 + 4 * np.std(found) / np.sqrt(len(found))
    assert within_agents([], 0) == 1.0

"""Each learner gets its own part of a checkpoint back; other numbers of learners get all there is, dealt out anew."""

import numpy as np
import pytest

from loomrl.training.distributed.learners.joint_checkpoints import divided, joined, num_learners, part_of
from tests.support.learners import left_by


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_learner_gets_back_what_it_left(rank: int) -> None:
    whole = joined([left_by(0), left_by(1), left_by(2)])
    own, left = part_of(whole, rank), left_by(rank)
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array)
    left.values["processes"] = [{"name": f"learner {number}"} for number in range(3)]  # all know all
    assert {name: own.values[name] for name in left.values} == left.values
    assert own.step == left.step


@pytest.mark.parametrize(("number", "num_envs"), [(1, 6), (2, 3), (4, 2)])
def test_other_learners_get_what_is_common_and_the_mean_of_what_is_not(number: int, num_envs: int) -> None:
    whole = joined([left_by(0), left_by(1), left_by(2)])
    found = divided(whole, number, num_envs)
    assert num_learners(found) == number
    parts = [part_of(found, rank) for rank in range(number)]
    for own in parts:
        np.testing.assert_array_equal(own.arrays["algorithm.policy.weight"], [7.0, 7.0])
        np.testing.assert_array_equal(own.arrays["algorithm.optimizer"], [1.0, 1.0])
        np.testing.assert_array_equal(own.arrays["peers.left_out"], [1.0])
        assert (own.step, own.values["rows"], own.values["segment"]) == (512, [1, 2], 3)
    running = np.concatenate([own.arrays["algorithm.reward_scaler.running"] for own in parts])
    assert running.tolist() == [0, 1, 10, 11, 20, 21, 0, 1][: number * num_envs]
    numbers = np.concatenate([own.arrays["environments.envs.number"] for own in parts])
    np.testing.assert_array_equal(numbers, running)  # an environment goes on where what belongs to it does
    actions = np.concatenate([own.arrays["environments.envs.actions"] for own in parts])
    assert actions.shape == (number * num_envs, 3, 1)
    assert actions[..., 0].tolist() == [
        [n // 10 * 10.0 if step <= n // 10 else 0.0 for step in range(3)] for n in numbers
    ]


def test_new_learners_draw_numbers_of_their_own() -> None:
    found = divided(joined([left_by(0), left_by(1)]), 4, 1)
    drawn = []
    for rank in range(4):
        generator = np.random.default_rng()
        generator.bit_generator.state = part_of(found, rank).values["rng"]
        drawn.append(generator.random())
    assert drawn[:2] == [np.random.default_rng(rank).random() for rank in range(2)]
    assert len(set(drawn)) == 4


def test_learners_that_come_one_after_another_draw_numbers_of_their_own() -> None:
    whole = joined([left_by(0), left_by(1)])
    for number in (3, 4):
        whole = divided(whole, number, 1)
    states = [part_of(whole, rank).values["rng"]["state"]["state"] for rank in range(4)]
    assert len(set(states)) == 4


def test_as_many_learners_get_the_same() -> None:
    whole = joined([left_by(0), left_by(1)])
    assert divided(whole, 2, 2) is whole

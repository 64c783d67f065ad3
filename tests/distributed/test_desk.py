"""What learners leave becomes one checkpoint, and each gets its own part back."""

import numpy as np
import pytest

from loomrl.distributed.desk import Desk, joined, part_of
from loomrl.errors import EnvironmentFault
from loomrl.training.checkpoints import Checkpoint


def part(rank: int, step: int = 512) -> Checkpoint:
    arrays = {
        "algorithm.policy.weight": np.full(2, 7.0),  # the same for all
        "algorithm.optimizer": np.full(2, float(rank)),
        "peers.left_out": np.full(1, float(rank)),
        "best.weight": np.zeros(2),
    }
    own = {"algorithm": {"scale": rank}, "rng": {"state": rank}}
    return Checkpoint(step, arrays, {"env_steps": step, "rows": [1, 2], "segment": 3, **own})


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_learner_gets_back_what_it_left(rank: int) -> None:
    whole = joined([part(0), part(1), part(2)])
    own, left = part_of(whole, rank), part(rank)
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array)
    assert {name: own.values[name] for name in left.values} == left.values
    assert own.step == left.step


def test_a_checkpoint_is_one_when_all_have_left_their_part() -> None:
    desk = Desk(2, None)
    assert desk.begin(0) is None
    desk.leave(0, part(0))
    assert desk.take().checkpoints == []
    desk.leave(1, part(1))
    (whole,) = desk.take().checkpoints
    assert whole.step == 512
    assert "learner1.algorithm.optimizer" in whole.arrays
    assert "learner1.best.weight" not in whole.arrays
    begun = desk.begin(1)
    assert begun is not None
    assert begun.values["rng"] == {"state": 1}
    assert desk.take().checkpoints == []


def test_parts_of_a_learner_that_was_lost_are_not_joined_with_later_ones() -> None:
    desk = Desk(2, joined([part(0, 256), part(1, 256)]))
    desk.leave(0, part(0, 512))  # learner 1 was lost before it left its part
    for rank in range(2):
        begun = desk.begin(rank)
        assert begun is not None
        assert begun.step == 256
    desk.leave(1, part(1, 512))
    assert desk.take().checkpoints == []
    desk.leave(0, part(0, 512))
    assert [one.step for one in desk.take().checkpoints] == [512]


def test_what_a_learner_failed_with_is_not_tried_again() -> None:
    desk = Desk(2, None)
    desk.fail(EnvironmentFault("first"))
    desk.fail(EnvironmentFault("what followed from it"))
    with pytest.raises(EnvironmentFault, match="first"):
        desk.begin(0)
    assert str(desk.failure()) == "first"

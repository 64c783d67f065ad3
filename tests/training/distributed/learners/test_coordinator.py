"""What learners leave becomes one checkpoint, and each gets its own part back."""

import numpy as np
import pytest
from learners import left_by as part

from loomrl.errors import EnvironmentFault
from loomrl.training.distributed.learners.coordinator import Coordinator
from loomrl.training.distributed.learners.joint_checkpoints import joined, num_learners


def test_a_checkpoint_is_one_when_all_have_left_their_part() -> None:
    desk = Coordinator(None)
    assert desk.begin(0, 2, 4) is None
    desk.leave(0, 2, part(0))
    assert desk.take().checkpoints == []
    desk.leave(1, 2, part(1))
    (whole,) = desk.take().checkpoints
    assert whole.step == 512
    assert "learner1.algorithm.optimizer" in whole.arrays
    assert "learner1.best.weight" not in whole.arrays
    begun = desk.begin(1, 2, 4)
    assert begun is not None
    assert begun.values["rng"] == np.random.default_rng(1).bit_generator.state
    assert desk.take().checkpoints == []


def test_parts_of_a_learner_that_was_lost_are_not_joined_with_later_ones() -> None:
    desk = Coordinator(joined([part(0, 256), part(1, 256)]))
    for rank in range(2):
        desk.begin(rank, 2, 4)
    desk.leave(0, 2, part(0, 512))  # learner 1 was lost before it left its part
    for rank in range(2):
        begun = desk.begin(rank, 2, 4)
        assert begun is not None
        assert begun.step == 256
    desk.leave(1, 2, part(1, 512))
    assert desk.take().checkpoints == []
    desk.leave(0, 2, part(0, 512))
    assert [one.step for one in desk.take().checkpoints] == [512]


def test_fewer_learners_go_on_from_what_more_have_left() -> None:
    desk = Coordinator(joined([part(0), part(1), part(2)]))
    for rank in range(3):
        desk.begin(rank, 3, 2)
    desk.leave(1, 3, part(1, 1024))
    begun = [desk.begin(rank, 2, 3) for rank in range(2)]
    assert [one.step for one in begun if one is not None] == [512, 512]
    desk.leave(2, 3, part(2, 1024))  # too late
    desk.leave(0, 2, part(0, 1024))
    assert desk.take().checkpoints == []
    desk.leave(1, 2, part(1, 1024))
    (whole,) = desk.take().checkpoints
    assert num_learners(whole) == 2


def test_what_a_learner_failed_with_is_not_tried_again() -> None:
    desk = Coordinator(None)
    desk.fail(EnvironmentFault("first"))
    desk.fail(EnvironmentFault("what followed from it"))
    with pytest.raises(EnvironmentFault, match="first"):
        desk.begin(0, 2, 4)
    assert str(desk.failure()) == "first"

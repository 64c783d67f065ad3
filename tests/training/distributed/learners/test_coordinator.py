"""What learners leave becomes one checkpoint, and each gets its own part back."""

import numpy as np
import pytest

from loomrl.errors import EnvironmentFault
from loomrl.training.distributed.learners.coordinator import Coordinator
from loomrl.training.distributed.learners.joint_checkpoints import joined, num_learners
from tests.support.learners import left_by as part


def test_a_checkpoint_is_one_when_all_have_left_their_part() -> None:
    coordinator = Coordinator(None)
    assert coordinator.register_learner(0, 2, 4) is None
    coordinator.submit_checkpoint(0, 2, part(0))
    assert coordinator.take_updates().checkpoints == []
    coordinator.submit_checkpoint(1, 2, part(1))
    (whole,) = coordinator.take_updates().checkpoints
    assert whole.step == 512
    assert "learner1.algorithm.optimizer" in whole.arrays
    assert "learner1.best.weight" not in whole.arrays
    begun = coordinator.register_learner(1, 2, 4)
    assert begun is not None
    assert begun.values["rng"] == np.random.default_rng(1).bit_generator.state
    assert coordinator.take_updates().checkpoints == []


def test_parts_of_a_learner_that_was_lost_are_not_joined_with_later_ones() -> None:
    coordinator = Coordinator(joined([part(0, 256), part(1, 256)]))
    for rank in range(2):
        coordinator.register_learner(rank, 2, 4)
    coordinator.submit_checkpoint(0, 2, part(0, 512))  # learner 1 was lost before it left its part
    for rank in range(2):
        begun = coordinator.register_learner(rank, 2, 4)
        assert begun is not None
        assert begun.step == 256
    coordinator.submit_checkpoint(1, 2, part(1, 512))
    assert coordinator.take_updates().checkpoints == []
    coordinator.submit_checkpoint(0, 2, part(0, 512))
    assert [one.step for one in coordinator.take_updates().checkpoints] == [512]


def test_fewer_learners_go_on_from_what_more_have_left() -> None:
    coordinator = Coordinator(joined([part(0), part(1), part(2)]))
    for rank in range(3):
        coordinator.register_learner(rank, 3, 2)
    coordinator.submit_checkpoint(1, 3, part(1, 1024))
    begun = [coordinator.register_learner(rank, 2, 3) for rank in range(2)]
    assert [one.step for one in begun if one is not None] == [512, 512]
    coordinator.submit_checkpoint(2, 3, part(2, 1024))  # too late
    coordinator.submit_checkpoint(0, 2, part(0, 1024))
    assert coordinator.take_updates().checkpoints == []
    coordinator.submit_checkpoint(1, 2, part(1, 1024))
    (whole,) = coordinator.take_updates().checkpoints
    assert num_learners(whole) == 2


def test_what_a_learner_failed_with_is_not_tried_again() -> None:
    coordinator = Coordinator(None)
    coordinator.report_failure(EnvironmentFault("first"))
    coordinator.report_failure(EnvironmentFault("what followed from it"))
    with pytest.raises(EnvironmentFault, match="first"):
        coordinator.register_learner(0, 2, 4)
    assert str(coordinator.failure()) == "first"

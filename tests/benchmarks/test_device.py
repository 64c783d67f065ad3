"""The benchmark of the device runs, and its limits are what it says."""

import pytest
import torch

from benchmarks import device


def test_limits_are_of_what_is_dispatched() -> None:
    found = device.measure(8, 1, 0.0, {"launches": 1e3, "bytes": 1e30, "flops": 1e30})
    assert found["limits"]["least"] == "launches"
    update = found["limits"]["one_update"]
    assert update["launches"] > update["launches_of_rollout"] > device.ROLLOUT_LENGTH
    limit = 8 * device.ROLLOUT_LENGTH * 1e3 / update["launches"]
    assert found["limits"]["steps_per_second"]["launches"] == pytest.approx(limit)
    assert found["fraction"] == pytest.approx(found["steps_per_second"]["training"]["median"] / limit)
    assert all(0 < one["least"] <= one["most"] for one in found["steps_per_second"].values())


def test_views_move_nothing_and_operations_what_they_read_and_write() -> None:
    values = torch.ones(10, 2, device=device.DEVICE)
    with device.Counter() as counter:
        doubled = values.T.reshape(20) * 2.0  # a view, a copy because of the order, and a product
        assert (counter.launches, counter.bytes) == (2, 4 * 80)
        doubled.add_(1.0)
    assert (counter.launches, counter.bytes) == (3, 6 * 80)

"""The simulation against hand calculation, and against what waiting for the slowest must do."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from loomrl.training.config import CompressionConfig, DistributedConfig
from loomrl.training.distributed.learners.compression import BlockQuantization, TopKSelection
from loomrl.training.distributed.simulation import (
    Machines,
    Work,
    bytes_per_synchronisation,
    efficiency,
    seconds_per_update,
)

WORK = Work(rollout_seconds=0.06, gradient_steps=10, seconds_per_gradient_step=0.002, num_parameters=1_000)
MACHINES = Machines(latency_seconds=1e-4, bytes_per_second=1e8)


def seconds(num_learners: int, sync_frequency: int, work: Work = WORK, machines: Machines = MACHINES) -> float:
    config = DistributedConfig(num_learners=num_learners, sync_frequency=sync_frequency)
    return float(seconds_per_update(config, work, machines, np.random.default_rng(0)).mean())


def test_one_learner_waits_for_nobody() -> None:
    assert seconds(1, 1) == pytest.approx(0.06 + 10 * 0.002)


@pytest.mark.parametrize(("sync_frequency", "synchronisations"), [(1, 10), (5, 2), (10, 1), (20, 0.5)])
def test_learners_of_one_speed_pay_for_messages_only(sync_frequency: int, synchronisations: float) -> None:
    one = 6 * (1e-4 + 4_000 / 4 / 1e8)  # a ring of four
    assert seconds(4, sync_frequency) == pytest.approx(0.08 + 4 * 3e-4 + synchronisations * one)


def test_messages_that_are_gathered_cost_by_the_number_of_learners() -> None:
    config = DistributedConfig(
        num_learners=4, sync_frequency=10, compression=CompressionConfig(method="top_k", share=0.1)
    )
    work = replace(WORK, decode_seconds=1e-3)
    found = seconds_per_update(config, work, MACHINES, np.random.default_rng(0)).mean()
    assert found == pytest.approx(0.08 + 4 * 3e-4 + 3 * (1e-4 + 800 / 1e8) + 4 * 1e-3)


def test_all_wait_for_the_slowest_the_more_of_them_there_are_and_the_oftener_they_meet() -> None:
    work, machines = replace(WORK, gradient_step_spread=0.5), Machines(0.0, np.inf)
    by_learners = [seconds(count, 1, work, machines) for count in (1, 2, 8, 64)]
    assert by_learners == sorted(by_learners)
    by_frequency = [seconds(64, every, work, machines) for every in (1, 2, 5, 10)]
    assert by_frequency == sorted(by_frequency, reverse=True)


def test_the_slowest_of_two_is_the_expected_maximum() -> None:
    """Of two lognormal times with a small spread: mean (1 + spread / sqrt(pi))."""
    work = Work(1.0, 1, 1e-9, 1, rollout_spread=0.01)
    config, rng = DistributedConfig(num_learners=2), np.random.default_rng(0)
    found = seconds_per_update(config, work, Machines(0.0, np.inf), rng, num_updates=20_000).mean()
    assert found == pytest.approx(1 + 0.01 / np.sqrt(np.pi), abs=3e-4)


def test_a_slow_machine_holds_up_all() -> None:
    machines = replace(MACHINES, slow_share=0.01, slow_factor=3.0)
    share = (seconds(64, 10, machines=machines) - seconds(64, 10)) / (2.0 * WORK.seconds)
    assert share == pytest.approx(1 - 0.99**64, abs=0.08)


def test_efficiency_is_of_one_learners_time() -> None:
    config = DistributedConfig(num_learners=4, sync_frequency=10)
    assert efficiency(config, WORK, MACHINES, np.random.default_rng(0)) == pytest.approx(0.08 / seconds(4, 10))


@pytest.mark.parametrize(
    ("compression", "expected"),
    [({"method": "none"}, 4_000), ({"method": "fp16"}, 2_000), ({"method": "bf16"}, 2_000)],
)
def test_bytes_of_what_is_reduced(compression: dict[str, str], expected: int) -> None:
    assert bytes_per_synchronisation(CompressionConfig.model_validate(compression), WORK) == expected


def test_bytes_are_those_of_the_messages() -> None:
    vector = torch.randn(1_000, generator=torch.Generator().manual_seed(0))
    for method, code in (("int8", BlockQuantization(1_000)), ("top_k", TopKSelection(0.01, 1_000))):
        assert bytes_per_synchronisation(CompressionConfig(method=method), WORK) == len(code.encode(vector))


def test_bytes_of_powersgd_are_those_it_says_it_sends() -> None:
    from loomrl.training.distributed.learners.compression import FIRST_POWERSGD, PowerSGDAveraging

    shape = (20, 40)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        averaging = PowerSGDAveraging(2, [(100, *shape)], dist.group.WORLD)
        sent = [averaging.average(torch.randn(1_000)) for _ in range(FIRST_POWERSGD + 2)]
    finally:
        dist.destroy_process_group()
    config = CompressionConfig(method="powersgd", rank=2)
    assert bytes_per_synchronisation(config, replace(WORK, matrices=(shape,))) == sent[-1]


@pytest.mark.long
def test_a_group_that_met_with_powersgd_can_be_left() -> None:
    """In a process of its own: torch ended one in a few that let go of the group at once."""
    program = """
import torch, torch.distributed as dist
from loomrl.training.distributed.learners.compression import PowerSGDAveraging
for _ in range(100):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    averaging = PowerSGDAveraging(1, [(0, 8, 8)], dist.group.WORLD)
    for _ in range(4):
        averaging.average(torch.randn(80))
    del averaging
    dist.destroy_process_group()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr

"""What learners do together, in processes that are a torch process group, against one process with all their data."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loomrl.algorithms.peers import Moments
from loomrl.training.distributed.learners.compression import BLOCK
from tests.support import learners
from tests.support.learners import JoinedOrders, World, own_vector

SIZES = [2, 4]
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {},
    "bf16": {},
    "powersgd": {"rank": 2},
    "int8": {},
    "top_k": {"share": 0.1},
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(4) as members:
        yield members


def same(arrays: list[np.ndarray]) -> np.ndarray:
    """The array that all learners have, bit for bit."""
    for other in arrays[1:]:
        np.testing.assert_array_equal(other, arrays[0], strict=True)
    return arrays[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("engine", "action"),
    [("torch", "box"), ("compiled", "box"), ("compiled", "discrete"), ("recurrent", "box"), ("costs", "discrete")],
)
def test_the_joined_gradient_is_that_of_one_process_with_the_joined_batch(
    world: World, engine: str, action: str, size: int
) -> None:
    values = {"batch_size": 256, "n_epochs": 1, "normalize_rewards": True, "max_grad_norm": 1e9}
    found = world.run(learners.updated, engine, action, values, size=size)
    alone = learners.built(engine, action, values | {"num_envs": learners.NUM_ENVS})
    whole = learners.joined_rollout(engine, action, values)
    rows_per_step = values["batch_size"] // (learners.SEQUENCE if engine == "recurrent" else 1)
    alone.update(whole, JoinedOrders(size, rows_per_step))
    gradient = same([gradient for _, _, gradient in found])
    np.testing.assert_allclose(gradient, learners.gradient_of(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_learners_that_join_gradients_learn_what_one_would_with_all_their_environments(
    world: World, engine: str, size: int
) -> None:
    """Advantages, rewards and observations normalised, the divergence followed, over all learners' rollouts."""
    values = {
        "batch_size": 96,  # the last batch of an epoch is smaller
        "n_epochs": 3,
        "normalize_rewards": True,
        "learning_rate_schedule": "adaptive",
        "desired_kl": 0.01,
        "learning_rate": 1e-3,
    }
    found = world.run(learners.updated, engine, "box", values, size=size)
    alone = learners.built(engine, "box", values | {"num_envs": learners.NUM_ENVS})
    metrics = alone.update(learners.joined_rollout(engine, "box", values), JoinedOrders(size, values["batch_size"]))
    for name, array in alone.policy.arrays().items():
        np.testing.assert_allclose(same([arrays[name] for _, arrays, _ in found]), array, rtol=1e-3, atol=1e-5)
    for joined, _, _ in found:
        del joined["explained_variance"]  # a mean over the learners: it is no mean over rows
        assert joined == pytest.approx({name: metrics[name] for name in joined}, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "values",
    [
        {"double": True, "engine": "compiled", "dueling": True},
        {"double": False, "engine": "torch", "num_quantiles": 3},
        {"engine": "compiled"},
        {"engine": "torch"},
        {"engine": "compiled", "temperature": 0.2},
    ],
)
def test_off_policy_learners_that_join_gradients_learn_what_one_would_from_the_joined_batches(
    world: World, values: dict[str, Any], size: int
) -> None:
    """Networks, targets, temperature and Adam's moments."""
    values = {"batch_size": 64} | values
    found = world.run(learners.replayed, values, size=size)
    metrics, state = learners.replay_steps(values, [*range(size)], values["batch_size"] // size)
    for name, value in state.items():
        joined = same([np.asarray(own[name]) for _, own in found])
        np.testing.assert_allclose(joined, value, rtol=1e-3, atol=1e-5, err_msg=name)
    for name, value in metrics.items():
        assert np.mean([own[name] for own, _ in found]) == pytest.approx(value, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_moments_are_those_of_all_rows(world: World, size: int) -> None:
    sizes = [5, 0, 3, 17][:size]
    rows = [np.random.default_rng(rank).normal(rank, 1 + rank, (count, 3)) for rank, count in enumerate(sizes)]
    expected = Moments.of(np.concatenate(rows))
    for found in world.run(learners.moments, sizes, size=size):
        np.testing.assert_allclose(found.mean, expected.mean)
        np.testing.assert_allclose(found.var, expected.var)
        assert found.count == expected.count


def test_moments_of_no_rows_at_all(world: World) -> None:
    assert [found.count for found in world.run(learners.moments, [0, 0], size=2)] == [0.0, 0.0]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such class")
def test_the_thread_that_waits_for_messages_puts_no_other_off(world: World) -> None:
    for classes in world.run(learners.scheduling_classes, size=2):
        assert classes["gloo_tcp_loop"] == {os.SCHED_BATCH}
        assert {os.SCHED_BATCH} not in [kinds for name, kinds in classes.items() if name != "gloo_tcp_loop"]


def test_only_the_first_computes_what_it_tells_the_others(world: World) -> None:
    assert world.run(learners.first_says, size=4) == [{"rank": 0, "row": [0.1, None, "due"]}] * 4


# --- steps of their own ---


def test_parameters_become_their_mean_every_so_many_steps(world: World) -> None:
    """Learner r adds r + 1 in a step; both begin at the first's 0."""
    seen = world.run(learners.local_steps, {"sync_frequency": 4}, [1, 3, 2, 2], size=2)
    assert [[row[0] for row in one] for one in seen] == [[0, 1, 6, 8, 12], [0, 2, 6, 10, 12]]


def test_the_outer_step_is_sgd_with_nesterovs_momentum(world: World) -> None:
    """Each round the mean moves by 3: with pseudo-gradient g = -3, momentum m <- 0.5 m + g, step -0.8 (g + 0.5 m)."""
    config = {"sync_frequency": 2, "outer_learning_rate": 0.8, "outer_momentum": 0.5}
    seen = world.run(learners.local_steps, config, [2, 2, 2], size=2)
    first = 0.8 * (3 + 0.5 * 3)
    second = first + 0.8 * (3 + 0.5 * (0.5 * 3 + 3))
    third = second + 0.8 * (3 + 0.5 * (0.5 * (0.5 * 3 + 3) + 3))
    assert same([np.array([row[0] for row in one]) for one in seen]) == pytest.approx([0, first, second, third])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_the_same_bits_after_every_synchronisation(world: World, method: str, size: int) -> None:
    compression = {"method": method, **METHODS[method]}
    config = {"sync_frequency": 3, "outer_learning_rate": 0.7, "outer_momentum": 0.9, "compression": compression}
    found = world.run(learners.synchronised, config, 4, size=size)
    after = [same([*parameters]) for parameters in zip(*found, strict=True)]
    assert len({parameters.tobytes() for parameters in after}) == 4  # they moved every time


# --- less on the wire ---


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_all_learners_have_one_mean_and_count_their_bytes(world: World, method: str, size: int) -> None:
    calls = 4
    found = world.run(learners.averages, {"method": method, **METHODS[method]}, calls, size=size)
    means = [same([means[call] for means, _ in found]) for call in range(calls)]
    wanted = [np.mean([own_vector(rank, call) for rank in range(size)], 0) for call in range(calls)]
    whole = 4 * 1000
    thin = 4 * (2 * (20 + 30) + 2 * (10 + 20) + 1000 - 20 * 30 - 10 * 20)
    expected = {
        "none": [whole] * calls,
        "fp16": [whole / 2] * calls,
        "bf16": [whole / 2] * calls,
        "powersgd": [whole, whole, thin, thin],
        "int8": [1000 + 4 * -(-1000 // BLOCK)] * calls,
        "top_k": [100 * (4 + 4)] * calls,
    }
    assert [num_bytes for _, num_bytes in found] == [expected[method]] * size
    closeness = {"none": 1e-6, "fp16": 2e-3, "bf16": 2e-2, "int8": 4e-2}
    if method in closeness:
        np.testing.assert_allclose(means, wanted, atol=closeness[method])


@pytest.mark.parametrize(("method", "most"), [("powersgd", 0.5), ("int8", 0.003), ("top_k", 0.5)])
def test_what_is_left_out_is_sent_later(world: World, method: str, most: float) -> None:
    """Over many calls the means add up to the true ones, but for one call's rest. Forgotten rests would add up too:
    to 0.75 of all where the largest tenth of normal numbers is sent, to 0.007 where all are, as bytes."""
    calls = 60
    found = world.run(learners.averages, {"method": method, **METHODS[method]}, calls, size=2)
    wanted = sum(np.mean([own_vector(rank, call) for rank in range(2)], 0) for call in range(calls))
    assert np.linalg.norm(np.sum(found[0][0], 0) - wanted) < most * np.linalg.norm(wanted)


@pytest.mark.parametrize("method", METHODS)
def test_averaging_goes_on_from_its_state(world: World, method: str) -> None:
    for first, second in world.run(learners.resumed_averages, {"method": method, **METHODS[method]}, size=2):
        np.testing.assert_array_equal(first, second)

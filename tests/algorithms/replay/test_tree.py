"""The sum tree against sums and searches over the plain array."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.algorithms.replay import tree
from loomrl.algorithms.replay.storage import MemoryStorage

SIZES = [1, 2, 8, 9, 63, 64, 65, 513]


def make(leaves: np.ndarray) -> tree.PriorityTree:
    made = tree.PriorityTree(len(leaves), MemoryStorage())
    made.leaves[...] = leaves
    made.rebuild()
    return made


def draw(made: tree.PriorityTree, uniform: np.ndarray, beta: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Leaves and weights; one environment and as many rows as leaves, so that the index is the leaf."""
    index, weight = np.empty(len(uniform), np.int64), np.empty(len(uniform), np.float32)
    size = made.num_leaves
    tree.draw(made.sums, made.smallest, made.offsets, 1, size, size, uniform, beta, index, weight)
    return index, weight


@pytest.mark.parametrize("size", SIZES)
def test_draws_what_a_search_in_the_running_sum_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    leaves = rng.integers(0, 5, size).astype(np.float64)  # whole numbers: sums are exact in any order
    leaves[rng.integers(size)] = 3.0
    made = make(leaves)
    assert made.total == leaves.sum()
    uniform = rng.random(1000)
    targets = (np.arange(1000) + uniform) / 1000 * leaves.sum()
    index, weight = draw(made, uniform)
    np.testing.assert_array_equal(index, np.searchsorted(np.cumsum(leaves), targets, side="right"))
    np.testing.assert_allclose(weight, leaves[leaves > 0].min() / leaves[index], rtol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.sampled_from(SIZES),
    exponents=st.lists(st.floats(-300, 30), min_size=1, max_size=20),
    seed=st.integers(0, 2**32),
)
def test_a_leaf_of_zero_is_never_drawn(size: int, exponents: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves = np.zeros(size)
    leaves[rng.integers(size, size=len(exponents))] = 10.0 ** np.array(exponents)
    uniform = np.concatenate([rng.random(50), np.full(14, np.nextafter(1.0, 0.0)), np.zeros(14)])
    index, weight = draw(make(leaves), uniform)
    assert (leaves[index] > 0).all()
    assert ((weight >= 0) & (weight <= 1)).all()


@pytest.mark.parametrize("size", SIZES)
def test_updates_leave_the_tree_that_its_leaves_would_make(size: int) -> None:
    rng = np.random.default_rng(size)
    made = make(rng.random(size))
    for _ in range(20):
        index = rng.integers(0, size, 40)  # some of them twice
        priority = rng.random(40) * 10.0 ** rng.integers(-8, 8, 40)
        fault, largest = tree.update(
            made.sums, made.smallest, made.offsets, 1, size, 0, size, index, priority, 1e-6, 0.7
        )
        assert fault == tree.NO_FAULT
        np.testing.assert_allclose(largest, ((priority + 1e-6) ** 0.7).max())
        again = make(made.leaves.copy())
        np.testing.assert_array_equal(made.sums, again.sums)  # to the bit: rounding does not pile up
        np.testing.assert_array_equal(made.smallest, again.smallest)
        np.testing.assert_allclose(made.total, made.leaves.sum())


@pytest.mark.parametrize(("first_row", "stop_row"), [(0, 3), (5, 9), (7, 14), (3, 10)])
def test_rows_are_filled_around_the_end_of_the_ring(first_row: int, stop_row: int) -> None:
    num_envs, num_slots = 3, 7
    made = make(np.arange(1.0, 22.0))
    expected = made.leaves.copy().reshape(num_envs, num_slots)
    expected[:, np.arange(first_row, stop_row) % num_slots] = 100.0
    tree.fill(made.sums, made.smallest, made.offsets, num_envs, num_slots, first_row, stop_row, 100.0)
    np.testing.assert_array_equal(made.leaves, expected.ravel())
    np.testing.assert_array_equal(made.sums, make(expected.ravel()).sums)
    np.testing.assert_array_equal(made.smallest, make(expected.ravel()).smallest)

"""What becomes a batch: by hand, by property, and as the reference does it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.language.trajectory.state.packing import TrajectoryGroup, find_subset, form_batches
from tests.support.atropos import ask_reference

_REFERENCE = """
import json, sys
from atroposlib.api.utils import (
    find_groups_summing_to_target, grab_batch_with_minimum_allocations, grab_exact_from_heterogeneous_queue)
answers = []
for case in json.load(sys.stdin):
    if "target" in case:
        buffer = [{"tokens": [[]] * size} for size in case["sizes"]]
        answers.append(find_groups_summing_to_target(buffer, case["target"]))
        continue
    queue = [{"tokens": [[]] * size, "env_id": env, "id": id} for id, (size, env) in enumerate(case["queue"])]
    environments = [
        {"registered_id": int(env), "connected": True, "min_batch_allocation": share} for env, share in case["minima"]]
    formed = []
    while True:
        if environments:
            batch, queue = grab_batch_with_minimum_allocations(queue, case["batch_size"], environments)
        else:
            batch, queue = grab_exact_from_heterogeneous_queue(queue, case["batch_size"])
        if batch is None:
            break
        formed.append([group["id"] for group in batch])
    answers.append(formed)
print(json.dumps(answers))
"""


def queue_of(*sizes: int, env_ids: tuple[int | None, ...] | None = None) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(index, size, None if env_ids is None else env_ids[index]) for index, size in enumerate(sizes)
    ]


def ids(batches: list[list[TrajectoryGroup]]) -> list[list[int]]:
    return [[group.id for group in batch] for batch in batches]


def test_groups_of_one_size_are_taken_first_come_first_served() -> None:
    assert ids(form_batches(queue_of(2, 2, 2, 2, 2), 4)) == [[0, 1], [2, 3]]


def test_smaller_groups_count_when_they_make_a_pack_of_the_largest_size() -> None:
    assert ids(form_batches(queue_of(2, 4, 2, 4), 8)) == [[1, 0, 2]]


def test_a_batch_that_would_overshoot_is_not_formed() -> None:
    assert form_batches(queue_of(3, 3, 3), 8) == []


def test_too_few_sequences_make_no_batch() -> None:
    assert form_batches(queue_of(2), 4) == []
    assert form_batches([], 4) == []


def test_empty_groups_are_in_no_batch() -> None:
    assert ids(form_batches(queue_of(0, 2, 0, 2), 4)) == [[1, 3]]


def test_minima_are_met_first() -> None:
    queue = queue_of(2, 2, 2, 2, env_ids=(0, 0, 1, 1))
    assert ids(form_batches(queue, 4, {1: 1.0})) == [[2, 3]]
    assert ids(form_batches(queue, 4, {1: 0.5})) == [[2, 0], [3, 1]]


def test_an_environment_with_a_minimum_and_no_groups_is_waited_for() -> None:
    assert form_batches(queue_of(2, 2, env_ids=(0, 0)), 4, {1: 0.5}) == []


def test_with_minima_groups_of_no_environment_wait() -> None:
    assert form_batches(queue_of(2, 2, env_ids=(0, None)), 4, {0: 0.5}) == []


def test_minima_of_more_than_a_batch_are_scaled_down() -> None:
    queue = queue_of(2, 2, 2, 2, env_ids=(0, 0, 1, 1))
    assert ids(form_batches(queue, 4, {0: 1.0, 1: 1.0})) == [[0, 2], [1, 3]]


def test_thousands_of_groups_are_packed_at_once() -> None:
    assert len(form_batches(queue_of(*[8] * 10_000), 64)) == 1_250


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 12))
def test_a_subset_sums_to_its_target_and_is_found_whenever_there_is_one(sizes: list[int], target: int) -> None:
    chosen = find_subset(sizes, target)
    sums = {0}
    for size in sizes:
        sums |= {size + one for one in sums}
    assert bool(chosen) == (target in sums)
    assert not chosen or sum(sizes[index] for index in chosen) == target
    assert chosen == sorted(set(chosen))


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([None, 0, 1, 2])), max_size=40),
    st.integers(1, 16),
    st.dictionaries(st.integers(0, 2), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
)
def test_every_batch_has_its_exact_size_and_no_group_is_in_two(
    queue: list[tuple[int, int | None]], batch_size: int, minima: dict[int, float]
) -> None:
    groups = [TrajectoryGroup(index, size, env_id) for index, (size, env_id) in enumerate(queue)]
    batches = form_batches(groups, batch_size, minima)
    assert all(sum(group.size for group in batch) == batch_size for batch in batches)
    taken = [group.id for batch in batches for group in batch]
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("seed", range(3))
def test_batches_are_those_of_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    cases = [_case(rng) for _ in range(2_000)]
    answers = ask_reference(_REFERENCE, cases)
    assert sum(map(bool, answers)) > 500  # cases with a batch to compare
    for case, expected in zip(cases, answers, strict=True):
        groups = [TrajectoryGroup(index, size, env_id) for index, (size, env_id) in enumerate(case["queue"])]
        assert ids(form_batches(groups, case["batch_size"], dict(case["minima"]))) == expected, case


@pytest.mark.parametrize("seed", range(3))
def test_subsets_are_those_of_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    cases = [
        {"sizes": [rng.randint(0, 6) for _ in range(rng.randint(0, 12))], "target": rng.randint(1, 16)}
        for _ in range(2_000)
    ]
    for case, expected in zip(cases, ask_reference(_REFERENCE, cases), strict=True):
        assert find_subset(case["sizes"], case["target"]) == expected, case


def _case(rng: random.Random) -> dict:
    """Sizes of powers of two mostly, as environments have them; also none of that."""
    sizes = rng.choice([[1, 2, 4, 8], [2, 4], [4], [1, 2, 3, 4, 5, 6], [8, 16]])
    batch_size = rng.choice([4, 8, 16, 12, 7])
    sizes = [size for size in sizes if size <= batch_size] or [1]
    queue = [(rng.choice(sizes), rng.choice([None, 0, 1, 2, 3])) for _ in range(rng.randint(0, 60))]
    shares = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
    minima = [(env_id, rng.choice(shares)) for env_id in range(3) if rng.random() < 0.5] if rng.random() < 0.6 else []
    return {"queue": queue, "batch_size": batch_size, "minima": minima}

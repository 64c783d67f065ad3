"""Prioritised replay against its definition: frequencies, weights, the life of a priority."""

from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.spec import Transitions
from loomrl.errors import ConfigError
from tests.support.naive_replay import NaiveReplay, World, vector_spec


def filled(num_steps: int = 12, alpha: float = 0.6, **changes: object) -> tuple[PrioritizedReplay, World]:
    spec = vector_spec(**changes)
    world = World(spec, np.random.default_rng(0))
    buffer = PrioritizedReplay(spec, alpha=alpha)
    buffer.add(world.trajectory(num_steps))
    return buffer, world


def counts(buffer: PrioritizedReplay, draws: int = 1000, seed: int = 1) -> np.ndarray:
    """How often each index was drawn."""
    rng, size = np.random.default_rng(seed), buffer.spec.capacity
    drawn = np.concatenate([buffer.sample(size, rng).index for _ in range(draws)])
    return np.bincount(drawn)


def test_frequencies_follow_the_definition() -> None:
    buffer, _ = filled(alpha=0.6)
    priority = np.random.default_rng(3).exponential(size=24)
    buffer.update_priorities(np.arange(24), priority)
    share = (priority + 1e-6) ** 0.6 / ((priority + 1e-6) ** 0.6).sum()
    found = counts(buffer)
    assert stats.chisquare(found, share * found.sum()).pvalue > 0.001


def test_single_draws_follow_the_definition() -> None:
    # Batches are stratified, which makes their counts too even for a chi-square test; draws of one are not.
    buffer, _ = filled(alpha=1.0)
    priority = np.random.default_rng(4).exponential(size=24)
    buffer.update_priorities(np.arange(24), priority)
    rng = np.random.default_rng(5)
    drawn = np.bincount([buffer.sample(1, rng).index[0] for _ in range(20_000)], minlength=24)
    p_value = stats.chisquare(drawn, (priority + 1e-6) / (priority + 1e-6).sum() * 20_000).pvalue
    assert 0.001 < p_value < 0.999


def test_weights_by_hand() -> None:
    buffer, _ = filled(num_steps=2, alpha=1.0)  # four transitions
    buffer.epsilon = 0.0
    buffer.update_priorities(np.arange(4), np.array([1.0, 2.0, 4.0, 8.0]))
    batch = buffer.sample(24, np.random.default_rng(0), beta=0.5)
    # P = 1/15, 2/15, 4/15, 8/15; (4 P)^-1/2 over the largest, that of P = 1/15
    by_hand = np.array([1.0, 1 / np.sqrt(2), 1 / 2, 1 / np.sqrt(8)], np.float32)
    assert set(batch.index.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(batch.weight, by_hand[batch.index], rtol=1e-6)
    in_full = buffer.sample(24, np.random.default_rng(0), beta=1.0)
    np.testing.assert_allclose(in_full.weight, np.array([1, 1 / 2, 1 / 4, 1 / 8])[in_full.index], rtol=1e-6)
    assert (buffer.sample(24, np.random.default_rng(0), beta=0.0).weight == 1.0).all()


def test_weights_are_those_of_the_papers_equation() -> None:
    buffer, _ = filled(alpha=0.7)
    priority = np.random.default_rng(6).exponential(size=24) + 0.01
    buffer.update_priorities(np.arange(24), priority)
    share = (priority + 1e-6) ** 0.7 / ((priority + 1e-6) ** 0.7).sum()
    weight = (24 * share) ** -0.4
    batch = buffer.sample(24, np.random.default_rng(0), beta=0.4)
    np.testing.assert_allclose(batch.weight, (weight / weight.max())[batch.index], rtol=1e-5)


def test_stratified_one_draw_from_each_equal_part() -> None:
    buffer, _ = filled()
    buffer.update_priorities(np.arange(24), np.ones(24))
    batch = buffer.sample(24, np.random.default_rng(0))
    assert sorted(batch.index.tolist()) == list(range(24))


def test_new_transitions_get_the_largest_priority_so_far() -> None:
    buffer, world = filled(num_steps=4, alpha=1.0)
    buffer.update_priorities(np.arange(8), np.array([9.0] + 7 * [1.0]))
    buffer.update_priorities(np.array([0]), np.array([1.0]))  # the largest is past, and still counts
    buffer.add(world.trajectory(1))
    found = counts(buffer)
    assert stats.chisquare(found, np.array(8 * [1.0] + 2 * [9.0]) / 26 * found.sum()).pvalue > 0.001


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_transitions_are_those_of_the_definition_while_the_ring_turns(frame_stack: int) -> None:
    spec = vector_spec(n_step=3, frame_stack=frame_stack, obs_shape=(3,))
    world = World(spec, np.random.default_rng(0), padding="zero")
    buffer, naive = PrioritizedReplay(spec), NaiveReplay(spec)
    rng = np.random.default_rng(1)
    for num_steps in (1, 5, 7, 12, 13, 40, 1, 2):
        trajectory = world.trajectory(num_steps)
        buffer.add(trajectory)
        naive.add(trajectory)
        batch = buffer.sample(24, rng)
        naive.check(batch)  # all in the window: rows that left it are never drawn
        buffer.update_priorities(batch.index, rng.exponential(size=24))
    newest = np.bincount(counts(buffer).nonzero()[0] // 2)
    assert newest.nonzero()[0].tolist() == list(range(81 - 12, 81))


def test_updates_of_transitions_that_are_gone_are_passed_over() -> None:
    buffer, world = filled(num_steps=12)
    index = buffer.sample(24, np.random.default_rng(0)).index
    buffer.add(world.trajectory(12))
    before = buffer.state_dict()
    buffer.update_priorities(index, np.full(24, 100.0))
    after = buffer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_later_of_two_equal_indices_counts() -> None:
    buffer, _ = filled(num_steps=1, alpha=1.0)
    buffer.update_priorities(np.array([0, 1, 0]), np.array([100.0, 1.0, 1.0]))
    batch = buffer.sample(24, np.random.default_rng(0), beta=1.0)
    assert (batch.weight == 1.0).all()  # equal priorities
    assert np.bincount(batch.index).tolist() == [12, 12]


def test_restores_to_the_bit() -> None:
    buffer, world = filled(num_steps=17)
    restored = PrioritizedReplay(buffer.spec)
    restored.add(world.trajectory(3))
    rng = np.random.default_rng(2)
    for _ in range(5):
        buffer.update_priorities(buffer.sample(24, rng).index, rng.exponential(size=24) * 10)
    restored.load_state_dict(buffer.state_dict())
    for seed in range(4):
        batches = [b.sample(24, np.random.default_rng(seed)) for b in (buffer, restored)]
        for field in fields(Transitions):
            np.testing.assert_array_equal(*(getattr(batch, field.name) for batch in batches))
        later, priority = world.trajectory(3), rng.exponential(size=24)
        for each in (buffer, restored):
            each.update_priorities(batches[0].index, priority)
            each.add(later)


@pytest.mark.parametrize(
    ("index", "priority"), [([0], [-1.0]), ([1], [np.nan]), ([2], [np.inf]), ([24], [1.0]), ([-1], [1.0])]
)
def test_impossible_priorities_change_nothing(index: list[int], priority: list[float]) -> None:
    buffer, _ = filled()
    before = buffer.state_dict()
    with pytest.raises(ConfigError, match=f"transition {index[0]} the priority {priority[0]}"):
        buffer.update_priorities(np.array([3, *index]), np.array([5.0, *priority]))
    after = buffer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_bad_settings() -> None:
    spec = vector_spec()
    with pytest.raises(ConfigError, match="alpha is 1.5"):
        PrioritizedReplay(spec, alpha=1.5)
    with pytest.raises(ConfigError, match="epsilon is 0"):
        PrioritizedReplay(spec, epsilon=0.0)
    buffer, _ = filled()
    with pytest.raises(ConfigError, match="beta is 2"):
        buffer.sample(4, np.random.default_rng(0), beta=2.0)
    with pytest.raises(ConfigError, match=r"index and priority \(N,\)"):
        buffer.update_priorities(np.arange(3), np.ones(2))
    with pytest.raises(ConfigError, match="empty"):
        PrioritizedReplay(spec).sample(4, np.random.default_rng(0))

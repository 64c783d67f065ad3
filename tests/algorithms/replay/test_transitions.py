"""`PrioritizedReplayBuffer(capacity, alpha)`, as the specification shows it."""

import numpy as np
import pytest

from loomrl import PrioritizedReplayBuffer
from loomrl.errors import ConfigError, EnvironmentFault


def filled(count: int = 8, capacity: int = 8, alpha: float = 0.6) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity=capacity, alpha=alpha, seed=1)
    for number in range(count):
        buffer.add(np.array([number, 0.5]), number % 3, float(number), np.array([number + 1, 0.5]), number % 4 == 3)
    return buffer


def test_a_batch_holds_transitions_as_they_were_added() -> None:
    buffer = filled()
    batch, indices, weights = buffer.sample(6, beta=0.4)
    assert set(batch) == {"states", "actions", "rewards", "next_states", "dones"}
    number = batch["rewards"].astype(int)
    np.testing.assert_array_equal(batch["states"], np.stack([number, np.full(6, 0.5)], 1))
    np.testing.assert_array_equal(batch["next_states"][:, 0], number + 1)
    np.testing.assert_array_equal(batch["actions"], number % 3)
    np.testing.assert_array_equal(batch["dones"], number % 4 == 3)
    assert indices.shape == (6,)
    np.testing.assert_array_equal(weights, np.ones(6))  # all priorities are equal


def test_draws_and_weights_follow_the_priorities() -> None:
    buffer, alpha, beta = filled(4, 4), 0.6, 0.7
    batch, indices, _ = buffer.sample(4)
    priorities = np.array([1.0, 2.0, 4.0, 8.0])
    order = {int(index): int(reward) for index, reward in zip(indices, batch["rewards"], strict=True)}
    assert len(order) == 4  # equal parts of equal priorities: each once
    buffer.update_priorities(np.array(list(order)), priorities[list(order.values())])
    share = priorities**alpha / (priorities**alpha).sum()
    counts = np.zeros(4)
    for _ in range(2_000):
        batch, _, weights = buffer.sample(4, beta)
        drawn = batch["rewards"].astype(int)
        counts += np.bincount(drawn, minlength=4)
        expected = (4 * share[drawn]) ** -beta
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)
    np.testing.assert_allclose(counts / counts.sum(), share, atol=0.01)


def test_the_oldest_make_room_and_new_ones_are_soon_seen() -> None:
    buffer = filled(20, 8)
    assert len(buffer) == 8
    batch, indices, _ = buffer.sample(8)
    assert set(batch["rewards"]) == set(range(12, 20))
    buffer.update_priorities(indices, np.full(8, 50.0))
    buffer.add(np.array([99.0, 0.5]), 0, 99.0, np.array([100.0, 0.5]), False)
    drawn = np.concatenate([buffer.sample(8)[0]["rewards"] for _ in range(200)])
    assert (drawn == 99.0).mean() == pytest.approx(1 / 8, abs=0.03)


def test_a_time_limit_is_no_end() -> None:
    buffer = PrioritizedReplayBuffer(4)
    buffer.add([0.0], 0, 1.0, [1.0], True, truncated=True)
    buffer.add([5.0], 0, 2.0, [6.0], True)
    batch, _, _ = buffer.sample(4)
    np.testing.assert_array_equal(batch["dones"], batch["rewards"] == 2.0)
    np.testing.assert_array_equal(batch["next_states"][:, 0], np.where(batch["rewards"] == 1.0, 1.0, 6.0))


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="alpha is 2.0"):
        PrioritizedReplayBuffer(4, alpha=2.0)
    with pytest.raises(ConfigError, match="capacity is 0"):
        PrioritizedReplayBuffer(0)
    with pytest.raises(ConfigError, match="capacity is 1000.0; it must be a whole number"):
        PrioritizedReplayBuffer(1e3)
    empty = PrioritizedReplayBuffer(4)
    with pytest.raises(ConfigError, match="empty"):
        empty.sample(2)
    with pytest.raises(ConfigError, match="empty"):
        empty.update_priorities(np.array([0]), [1.0])
    buffer = filled()
    with pytest.raises(ConfigError, match=r"state is float64 \(3,\), the first one was float32 \(2,\)"):
        buffer.add(np.zeros(3), 0, 0.0, np.zeros(2), False)
    with pytest.raises(ConfigError, match=r"action is float64 \(\), the first one was int64"):
        buffer.add(np.zeros(2), 0.5, 0.0, np.zeros(2), False)
    with pytest.raises(EnvironmentFault, match="gave reward nan"):
        buffer.add(np.zeros(2), 0, float("nan"), np.zeros(2), False)
    with pytest.raises(ConfigError, match="done is 'False'; it must be true or false"):
        buffer.add(np.zeros(2), 0, 0.0, np.zeros(2), "False")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"state \[1e\+300, 0.0\] does not fit into float32"):
        buffer.add([1e300, 0.0], 0, 0.0, np.zeros(2), False)
    with pytest.raises(ConfigError, match="indices are float64"):
        buffer.update_priorities(np.array([0.9]), [1.0])
    narrow = PrioritizedReplayBuffer(4)
    narrow.add([0.0], np.int32(1), 0.0, [0.0], False)
    with pytest.raises(ConfigError, match="action 8589934597 does not fit into int32"):
        narrow.add([0.0], 2**33 + 5, 0.0, [0.0], False)
    assert len(buffer) == 8
    with pytest.raises(ConfigError, match="beta is 2"):
        buffer.sample(2, beta=2)


def test_the_former_name_of_the_buffer_behind_it_warns() -> None:
    import loomrl.algorithms.replay.prioritized as prioritized

    with pytest.warns(DeprecationWarning, match="named PrioritizedReplay now"):
        assert prioritized.PrioritizedReplayBuffer is prioritized.PrioritizedReplay

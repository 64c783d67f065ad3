"""Episodes are led by actions, pushes and misled sensors, and play again from their actions alone."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.probing.playing import Field, Lead, opposite
from loomrl.safety.search.leads import Room, draw_leads, neighbours
from tests.support.trained import PROJECT


class Weak:
    """Pushes back a little, and gives no number where the pendulum is fast."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        return np.where(obs[:, 2:] > 6.0, np.nan, np.clip(-0.5 * obs[:, 2:], -2.0, 2.0)).astype(np.float32)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Field:
    folder = tmp_path_factory.mktemp("pendulum")
    spec = take_snapshot(EnvironmentConfig(id="Pendulum-v1"), PROJECT, folder).spec
    return Field(folder, Weak(), space_from_json(spec.action), space_from_json(spec.observation), 8)


def test_a_push_takes_the_policys_place_for_its_steps_alone(field: Field) -> None:
    push = np.array([1.5], np.float32)
    (episode,) = field.play([Lead(1, 3, 6, push=push)], horizon=4)
    assert episode.length == 10
    own = Weak()(episode.obs)
    assert np.array_equal(episode.action[3:6], np.repeat(push[None], 3, axis=0))
    assert np.array_equal(np.delete(episode.action, range(3, 6), axis=0), np.delete(own, range(3, 6), axis=0))


def test_what_was_led_plays_again_from_its_actions_in_any_company(field: Field) -> None:
    bias = np.array([0.0, 0.0, 1.0])
    leads = [Lead(seed, 2, 9, bias=bias if seed % 2 else None, against=seed % 2 == 0) for seed in range(20)]
    episodes = field.play(leads, horizon=5)
    for lead, episode in zip(leads[::7], episodes[::7], strict=True):
        (again,) = field.play([lead.replayed(episode)], horizon=5)
        assert np.array_equal(again.obs, episode.obs)
        assert np.array_equal(again.reward, episode.reward, equal_nan=True)


def test_an_action_that_is_none_ends_the_episode_as_a_failure(field: Field) -> None:
    hard = np.array([2.0], np.float32)
    episodes = field.play([Lead(seed, 0, 40, push=hard) for seed in range(8)], horizon=50)
    broken = [episode for episode in episodes if np.isnan(episode.reward[-1])]
    assert broken
    assert all(episode.obs[-1, 2] > 6.0 for episode in broken)
    assert all(episode.terminated for episode in broken)


def test_leads_follow_from_the_generator_and_neighbours_begin_beside_them(field: Field) -> None:
    room = Room(np.zeros(3), np.ones(3), [(2, 8.0)])
    drawn = [draw_leads(field, room, range(200), 30, np.random.default_rng(5)) for _ in range(2)]
    assert [(one.seed, one.start, one.stop) for one in drawn[0]] == [
        (one.seed, one.start, one.stop) for one in drawn[1]
    ]
    kinds = {(one.push is not None, one.against, one.bias is not None) for one in drawn[0]}
    assert kinds == {(True, False, False), (False, True, False), (False, False, True)}
    biases = np.array([one.bias for one in drawn[0] if one.bias is not None])
    assert {abs(bias[2]) for bias in biases} > {2.0, 4.0, 6.0}  # shares of the way; 0 of those of other components
    close = neighbours(Lead(1, 2, 5, against=True))
    assert sorted(one.start for one in close) == [0, 1, 3, 4, 5, 6]
    assert all(one.stop - one.start == 3 for one in close)


def test_room_goes_to_a_declared_limit_else_to_a_bound_of_the_space(field: Field) -> None:
    visited = np.array([[0.5, 0.0, 1.0], [0.5, 0.5, 3.0]], np.float32)
    speed = ConstraintConfig(name="slow", quantity="observation[2]", high=5.0)
    room = Room.of(field.observations, visited, [speed])
    assert room.ways == [(1, 1.25), (1, 0.75), (2, 10.0), (2, 3.0)]  # the first component never moved
    assert np.array_equal(room.deviations, np.std(visited, axis=0))
    assert Room.of(field.actions, visited[:, :1], []).ways == []


def test_a_push_at_a_share_of_all_observations_is_the_same_in_any_company(field: Field) -> None:
    push = np.array([1.5], np.float32)
    leads = [Lead(seed, 0, 60, push=push, share=0.3) for seed in range(20)]
    together = field.play(leads, horizon=0)
    (alone,) = field.play(leads[7:8], horizon=0)
    assert np.array_equal(together[7].obs, alone.obs)
    pushed = np.concatenate([episode.action[:, 0] == 1.5 for episode in together])
    assert abs(pushed.mean() - 0.3) < 4 * np.sqrt(0.21 / len(pushed))


def test_the_opposite_is_farthest_away(field: Field) -> None:
    assert opposite(field.actions, np.array([[0.5]], np.float32)).tolist() == [[-0.5]]

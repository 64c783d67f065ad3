"""Episodes cut out of the steps of several environments: whose rows, from where, with which numbers of the infos."""

import numpy as np
import pytest

from loomrl.environment.collecting.episode_log import EpisodeLog, summed
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.types import Episode

LONG = 1_000


class Played:
    """B environments whose observation is (environment, steps taken) and whose reward is the number of steps taken."""

    def __init__(self, num_envs: int, longest: int = LONG) -> None:
        self.log, self.num_envs, self.steps = EpisodeLog(num_envs, longest), num_envs, 0
        self.taken: dict[int, Episode] = {}

    def obs(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), np.full(self.num_envs, self.steps)], -1)

    def step(self, **info: np.ndarray) -> None:
        rewards = np.full(self.num_envs, float(self.steps))
        self.log.add(self.obs(), np.full(self.num_envs, -self.steps), rewards, info)
        self.steps += 1

    def end(self, *indices: int, truncated: bool = False) -> None:
        ended = np.isin(np.arange(self.num_envs), indices)
        self.log.end(ended, self.obs(), ended & (not truncated), ended & truncated, self.taken.__setitem__)


def test_an_episode_has_its_own_rows_and_the_true_last_observation() -> None:
    played = Played(2)
    played.log.begin(0, 5, seed=70)
    played.step()
    played.log.begin(1, 6, seed=71)  # a step later
    played.step()
    played.step()
    played.end(0, 1, truncated=True)
    first, second = played.taken[5], played.taken[6]
    assert (first.seed, second.seed) == (70, 71)
    assert first.obs.tolist() == [[0, 0], [0, 1], [0, 2]]
    assert first.next_obs.tolist() == [[0, 1], [0, 2], [0, 3]]
    assert second.obs.tolist() == [[1, 1], [1, 2]]
    assert second.next_obs.tolist() == [[1, 2], [1, 3]]
    assert (first.action.tolist(), first.reward.tolist()) == ([0, -1, -2], [0.0, 1.0, 2.0])
    assert (first.terminated, first.truncated, first.info, first.success) == (False, True, {}, None)


def test_who_is_idle_is_never_told_of() -> None:
    played = Played(2)
    played.log.begin(0, 0, seed=1)
    played.log.begin(1, None, seed=2)
    played.step()
    played.end(0, 1)
    played.step()  # nobody has an episode now
    played.end(0, 1)
    assert played.taken.keys() == {0}
    assert played.taken[0].terminated


def test_rows_of_episodes_that_are_over_are_forgotten_and_those_under_way_are_not() -> None:
    played = Played(2)
    played.log.begin(0, 0, seed=0)
    played.log.begin(1, 1, seed=1)
    for step in range(1, 701):
        played.step()
        if step % 100 == 0:
            played.end(0)
            played.log.begin(0, 1 + step, seed=step)
        if step == 350:
            played.end(1)
            played.log.begin(1, 2, seed=2)
    played.end(1)
    assert played.taken[1].obs[:, 1].tolist() == list(range(350))
    assert played.taken[2].obs[:, 1].tolist() == list(range(350, 700))
    assert played.taken[501].obs.tolist() == [[0, step] for step in range(500, 600)]
    assert played.log._size < 700  # else there was nothing to get wrong


def test_an_episode_that_does_not_end_is_named() -> None:
    played = Played(2, longest=5)
    played.log.begin(0, None, seed=3)
    played.log.begin(1, 0, seed=4)
    for _ in range(5):
        played.step()
    with pytest.raises(EnvironmentFault, match="the episode with seed 4 did not end within 5 steps"):
        played.step()


def given(values: list[float], present: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(values), np.array(present)


def test_numbers_of_infos_are_kept_by_step_and_nan_where_none_was_told() -> None:
    played = Played(2)
    played.log.begin(0, 0, seed=0)
    played.log.begin(1, 1, seed=1)
    played.step()  # nobody tells anything
    speed, told = given([3.0, 9.0], [True, False])
    played.step(speed=speed, _speed=told, note=np.array(["a", "b"]), _note=told)
    played.step()
    played.end(0, 1)
    np.testing.assert_array_equal(played.taken[0].info["speed"], [np.nan, 3.0, np.nan])
    assert played.taken[0].info.keys() == {"speed"}  # texts are no numbers
    assert played.taken[1].info == {}


def test_what_forgotten_steps_told_is_told_by_no_later_one() -> None:
    played = Played(1)
    played.log.begin(0, 0, seed=0)
    for _ in range(150):
        played.step(speed=np.array([3.0]), _speed=np.array([True]))
    played.end(0)
    played.log.begin(0, 1, seed=1)
    for _ in range(150):
        played.step()
    assert played.log._size < 200  # the first episode's rows are forgotten
    played.end(0)
    assert played.taken[0].info["speed"].tolist() == [3.0] * 150
    assert played.taken[1].info == {}


def test_a_step_that_tells_no_cost_costs_nothing_and_one_that_is_not_finite_is_named() -> None:
    played = Played(1)
    played.log.begin(0, 0, seed=8)
    played.step()
    played.step(cost=np.array([0.5]), _cost=np.array([True]))
    played.end(0)
    assert played.taken[0].info["cost"].tolist() == [0.0, 0.5]
    played.log.begin(0, 1, seed=9)
    played.step()
    played.step(cost=np.array([np.inf]), _cost=np.array([True]))
    with pytest.raises(EnvironmentFault, match=r'info\["cost"\] is inf in step 1 of the episode with seed 9'):
        played.end(0)


@pytest.mark.parametrize("name", ["is_success", "success"])
def test_success_is_what_the_last_step_says(name: str) -> None:
    verdicts = {}
    for position, said in enumerate([(1, 0), (0, 1), (1, None)]):
        played = Played(1)
        played.log.begin(0, position, seed=0)
        for verdict in said:
            values = {} if verdict is None else {name: np.array([verdict]), f"_{name}": np.array([True])}
            played.step(**values)
        played.end(0)
        verdicts |= {position: played.taken[position].success}
    assert verdicts == {0: False, 1: True, 2: None}


def test_sums_are_over_what_was_told_and_a_key_nobody_told_is_named() -> None:
    def episode(**info: np.ndarray) -> Episode:
        zeros = np.zeros((2, 1))
        return Episode(0, zeros, zeros, np.zeros(2), zeros, terminated=True, truncated=False, info=info)

    told = [episode(heat=np.array([1.0, np.nan]), speed=np.zeros(2)), episode()]
    assert summed("heat", told, "here") == [1.0, 0.0]
    with pytest.raises(ConfigError, match=r"here: .* no numeric key 'cost'; its keys: heat, speed"):
        summed("cost", told, "here")

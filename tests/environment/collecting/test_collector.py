"""The collector on real environments: true successors at automatic resets, whole episodes for any number of envs."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.types import Act


class Counter(gymnasium.Env[np.ndarray, int]):
    """Observation (start, steps so far); terminates after `start % 5 + 2` steps, truncates after 4."""

    observation_space = gymnasium.spaces.Box(0, 1e9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.start, self.steps = int(self.np_random.integers(1000)), 0
        return np.array([self.start, 0.0]), {"begun": 1}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        terminated = self.steps >= self.start % 5 + 2
        truncated = self.steps >= 4 and not terminated
        info = {"twice": 2 * self.steps, "note": "text", "is_success": bool(terminated)}
        if self.steps == 2:
            info["late"] = 7.0
        return np.array([self.start, float(self.steps)]), float(self.steps), terminated, truncated, info


def vector(make: object, num_envs: int, mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)  # type: ignore[list-item]


def alternate(obs: np.ndarray, rng: np.random.Generator) -> Act:
    return Act(action=np.arange(len(obs)) % 2, value=obs[:, 0], extras={"noise": rng.random((len(obs), 3))})


def test_next_obs_is_the_true_successor() -> None:
    collector = Collector(vector(Counter, 3, AutoresetMode.SAME_STEP), seed=1, act=alternate)
    parts = [collector.collect(15, np.random.default_rng(0)) for _ in range(2)]
    obs = np.concatenate([part.obs for part in parts])  # (30, 3, 2)
    next_obs = np.concatenate([part.next_obs for part in parts])
    ended = np.concatenate([part.terminated | part.truncated for part in parts])
    assert np.concatenate([part.terminated for part in parts]).any()
    assert np.concatenate([part.truncated for part in parts]).any()
    assert (next_obs[..., 0] == obs[..., 0]).all()  # the same episode ...
    assert (next_obs[..., 1] == obs[..., 1] + 1).all()  # ... one step further, also where it ended
    assert (obs[1:][ended[:-1]][:, 1] == 0).all()  # then a new one begins ...
    assert (obs[1:][~ended[:-1]] == next_obs[:-1][~ended[:-1]]).all()  # ... and only then


class Pushed(Counter):
    """Takes numbers, and none that is not finite."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert np.isfinite(action).all(), "it was seen"
        return super().step(0)


def test_an_action_that_is_not_finite_has_one_error_and_no_environment_sees_it() -> None:
    def act(obs: np.ndarray, rng: np.random.Generator) -> Act:
        diverges = (obs[:, 1] == 1) & (np.arange(len(obs)) == 2)  # in environment 2, after a step
        return Act(action=np.where(diverges[:, None], [0.5, np.nan], 0.0))

    message = (
        r"the policy chose the action \[0.5, nan\] for observation \[\d+\., +1\.\] in environment 2: it has diverged"
    )
    rng = np.random.default_rng(0)
    with pytest.raises(LoomRLError, match=message):
        Collector(vector(Pushed, 3, AutoresetMode.SAME_STEP), seed=1, act=act).collect(5, rng)
    with pytest.raises(LoomRLError, match=message):
        run_episodes(vector(Pushed, 3, AutoresetMode.DISABLED), act, range(3), rng)


def test_episodes_go_on_from_one_rollout_to_the_next() -> None:
    collector = Collector(vector(Counter, 3, AutoresetMode.SAME_STEP), seed=1, act=alternate)
    parts = [collector.collect(1, np.random.default_rng(0)) for _ in range(12)]
    for before, after in zip(parts, parts[1:], strict=False):
        ended = before.terminated[0] | before.truncated[0]
        assert (after.obs[0][~ended] == before.next_obs[0][~ended]).all()
    assert sum(part.terminated.sum() + part.truncated.sum() for part in parts) == len(collector.finished) > 6


def test_trajectory_keeps_what_the_act_function_says() -> None:
    trajectory = Collector(vector(Counter, 3, AutoresetMode.SAME_STEP), 1, alternate).collect(
        5, np.random.default_rng(0)
    )
    assert trajectory.action.tolist() == [[0, 1, 0]] * 5
    assert set(trajectory.extras) == {"value", "noise"}
    assert (trajectory.extras["value"] == trajectory.obs[..., 0]).all()
    assert trajectory.extras["noise"].shape == (5, 3, 3)


def counting(obs: np.ndarray, rng: np.random.Generator, memory: np.ndarray | None = None) -> Act:
    """Remembers how many steps it has taken, and does what they are modulo two."""
    before = np.zeros((len(obs), 1), np.float32) if memory is None else memory
    return Act(action=before[:, 0].astype(np.int64) % 2, memory=before + 1, extras={"memory": before})


def test_each_environments_memory_lasts_for_its_episode() -> None:
    collector = Collector(vector(Counter, 3, AutoresetMode.SAME_STEP), seed=1, act=counting)
    for _ in range(3):
        trajectory = collector.collect(5, np.random.default_rng(0))
        assert (trajectory.extras["memory"][..., 0] == trajectory.obs[..., 1]).all()
        ended = trajectory.terminated | trajectory.truncated
        assert (ended.any(1) & ~ended.all(1)).any()  # they do not all end at once
    for episode in run_episodes(
        vector(Counter, 3, AutoresetMode.DISABLED), counting, range(9), np.random.default_rng(0)
    ):
        assert episode.action.tolist() == [step % 2 for step in range(episode.length)]


def test_finished_episodes_have_return_and_length() -> None:
    collector = Collector(vector(Counter, 2, AutoresetMode.SAME_STEP), 3, alternate)
    trajectory = collector.collect(40, np.random.default_rng(0))
    ended = trajectory.terminated | trajectory.truncated
    lengths = [int(length) for length in trajectory.next_obs[ended][:, 1]]
    assert sorted(collector.finished) == sorted((sum(range(1, length + 1)), length) for length in lengths)


def test_collecting_is_deterministic() -> None:
    def collect() -> bytes:
        envs = vector(lambda: gymnasium.make("CartPole-v1"), 4, AutoresetMode.SAME_STEP)
        trajectory = Collector(envs, 7, alternate).collect(60, np.random.default_rng(2))
        return trajectory.obs.tobytes() + trajectory.next_obs.tobytes() + trajectory.extras["noise"].tobytes()

    assert collect() == collect()


def lean(obs: np.ndarray, rng: np.random.Generator) -> Act:
    return Act(action=(obs[:, 2] + 0.3 * obs[:, 3] > 0).astype(np.int64))


@pytest.mark.parametrize("num_envs", [1, 3, 8, 20])
def test_episodes_do_not_depend_on_the_number_of_environments(num_envs: int) -> None:
    seeds = [31, 4, 1000, 7, 7, 12, 99, 5, 6, 8, 10]
    episodes = run_episodes(
        vector(lambda: gymnasium.make("CartPole-v1"), num_envs, AutoresetMode.DISABLED), lean, seeds,
        np.random.default_rng(0),
    )  # fmt: skip
    assert [episode.seed for episode in episodes] == seeds
    for episode in episodes:
        env = gymnasium.make("CartPole-v1")
        obs, _ = env.reset(seed=episode.seed)
        for step in range(episode.length):
            assert obs.tobytes() == episode.obs[step].tobytes()
            action = lean(obs[None], np.random.default_rng(0)).action[0]
            assert action == episode.action[step]
            obs, reward, terminated, truncated, _ = env.step(action)
            assert obs.tobytes() == episode.next_obs[step].tobytes()
            assert reward == episode.reward[step]
        assert (terminated, truncated) == (episode.terminated, episode.truncated)
        assert terminated or truncated


def test_episodes_come_in_the_order_of_their_seeds() -> None:
    seeds = [9, 3, 14, 3, 0, 27, 5, 8]
    episodes = run_episodes(vector(Counter, 3, AutoresetMode.DISABLED), alternate, seeds, np.random.default_rng(0))
    assert [episode.seed for episode in episodes] == seeds
    assert len({episode.length for episode in episodes}) > 1  # so they ended in another order


def test_episodes_keep_numeric_info_and_success() -> None:
    told = []
    episodes = run_episodes(
        vector(Counter, 2, AutoresetMode.DISABLED), alternate, range(9), np.random.default_rng(0), told.append
    )
    assert sorted(episode.seed for episode in told) == list(range(9))
    for episode in episodes:
        assert set(episode.info) == {"twice", "is_success"} | ({"late"} if episode.length >= 2 else set())
        assert episode.info["twice"].tolist() == [2.0 * step for step in range(1, episode.length + 1)]
        late = episode.info["late"]
        assert late[1] == 7.0
        assert np.isnan(np.delete(late, 1)).all()
        assert episode.success is episode.terminated
        assert episode.episode_return == sum(range(1, episode.length + 1))


def test_no_seeds_no_episodes() -> None:
    assert run_episodes(vector(Counter, 2, AutoresetMode.DISABLED), alternate, [], np.random.default_rng(0)) == []


def test_wrong_autoreset_is_named() -> None:
    with pytest.raises(ConfigError, match='Collector needs environments made with autoreset="same_step"'):
        Collector(vector(Counter, 1, AutoresetMode.NEXT_STEP), 0, alternate)
    with pytest.raises(ConfigError, match='run_episodes needs environments made with autoreset="disabled"'):
        run_episodes(vector(Counter, 1, AutoresetMode.SAME_STEP), alternate, [1], np.random.default_rng(0))


def test_an_episode_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomrl.environment.collecting.collector.LONGEST_EPISODE", 3)
    with pytest.raises(EnvironmentFault, match=r"seed \d+ did not end within 3 steps; set environment.max_episode"):
        run_episodes(vector(Counter, 1, AutoresetMode.DISABLED), alternate, range(20), np.random.default_rng(0))

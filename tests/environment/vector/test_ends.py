"""Environments that write into the same arrays again: an episode's end stays what it was when the next one begins."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from loomrl import VectorizedEnv
from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.environment.config import BoundaryConfig, EnvironmentConfig, EpisodeBounds
from loomrl.environment.make import make_envs
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.choose import Autoreset, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.types import Act

LIMIT = 3
CONFIG = EnvironmentConfig(id="reusing", entry_point="reusing_env:Reusing", max_episode_steps=LIMIT)


def ones(obs: np.ndarray, rng: np.random.Generator) -> Act:
    return Act(action=np.ones(len(obs), np.int64))


def one_step_on(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether one observation (..., 2) follows another in the same episode."""
    return (after == before + [1, 0]).all()


def recipe(**changes: Any) -> Recipe:
    return Recipe(replace(resolve(CONFIG, Path()), **changes))


@pytest.mark.parametrize("autoreset", ["same_step", "resumable"])
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_the_true_successor_survives_the_reset(backend: str, autoreset: Autoreset) -> None:
    with closing(make_vector(recipe(), 2, autoreset, backend)) as envs:
        part = Collector(envs, 0, ones).collect(2 * LIMIT, np.random.default_rng(0))
    assert one_step_on(part.obs, part.next_obs)
    assert np.flatnonzero(part.truncated[:, 0]).tolist() == [LIMIT - 1, 2 * LIMIT - 1]
    assert part.obs[:, 0, 0].tolist() == [0, 1, 2] * 2


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_what_the_last_step_told_survives_the_reset(backend: str) -> None:
    with closing(make_vector(recipe(), 2, "same_step", backend)) as envs:
        envs.reset(seed=0)
        before, *_ = [envs.step(np.ones(2, np.int64))[0] for _ in range(LIMIT - 1)][::-1]
        first, *_, info = envs.step(np.ones(2, np.int64))
    assert one_step_on(before, info["final_info"]["place"])
    assert (info["place"] == first).all()


@pytest.mark.parametrize("parts", [{}, {"entry_point": "reusing_env:ReusingPair"}, {"frame_stack": 2}])
def test_whatever_an_observation_is_made_of(parts: dict[str, Any]) -> None:
    config = EnvironmentConfig.model_validate(CONFIG.model_dump() | parts)
    with closing(make_vector(Recipe(resolve(config, Path())), 1, "same_step", "serial")) as envs:
        part = Collector(envs, 0, ones).collect(LIMIT, np.random.default_rng(0))
    assert one_step_on(part.obs[-1].reshape(-1, 2), part.next_obs[-1].reshape(-1, 2))


def test_where_a_bound_ends_it() -> None:
    bounds = EpisodeBounds((BoundaryConfig(quantity="observation[0]", high=1.5, terminate=True),), None)
    with closing(make_vector(recipe(bounds=bounds), 1, "same_step", "serial")) as envs:
        part = Collector(envs, 0, ones).collect(2, np.random.default_rng(0))
    assert part.terminated[:, 0].tolist() == [False, True]
    assert one_step_on(part.obs, part.next_obs)


def test_whole_episodes_end_where_they_ended() -> None:
    with closing(make_vector(recipe(), 2, "disabled", "serial")) as envs:
        episodes = run_episodes(envs, ones, [0, 1, 2], np.random.default_rng(0))
    assert all(one_step_on(episode.obs, episode.next_obs) for episode in episodes)


@pytest.mark.parametrize("backend", ["auto", "processes"])
def test_the_vector_of_a_snapshot(backend: str, tmp_path: Path) -> None:
    take_snapshot(CONFIG, tmp_path, tmp_path / "snapshot")
    with closing(make_envs(tmp_path / "snapshot", 1, backend=backend)) as envs:
        part = Collector(envs, 0, ones).collect(LIMIT, np.random.default_rng(0))
    assert one_step_on(part.obs, part.next_obs)


def test_vectorized_env_shows_it() -> None:
    gymnasium.register("Reusing-v0", entry_point="reusing_env:Reusing", max_episode_steps=LIMIT)
    try:
        envs = VectorizedEnv({"env_id": "Reusing-v0", "num_envs": 2})
    finally:
        del gymnasium.registry["Reusing-v0"]
    with closing(envs):
        envs.reset(seed=0)
        before, *_ = [envs.step(np.ones(2, np.int64))[0] for _ in range(LIMIT - 1)][::-1]
        states, *_, infos = envs.step(np.ones(2, np.int64))
    assert one_step_on(before, np.stack([one["final_observation"] for one in infos]))
    assert (states[:, 0] == 0).all()

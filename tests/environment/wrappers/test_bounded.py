"""Bounds of training's environments: penalties by hand, episodes that end, and back-ends that cannot keep any."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from pydantic import ValidationError

from loomrl.environment.config import BoundaryConfig, EnvironmentConfig, EpisodeBounds
from loomrl.environment.make import choose_backend, make_env, make_envs, settle_backend
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.choose import choose
from loomrl.environment.wrappers.bounded import Bounded, check_bounds
from loomrl.errors import ConfigError
from loomrl.runs import preflight
from loomrl.runs.config import load_config

PROJECT = Path(__file__).parents[3]


def boundary(quantity: str = "observation[0]", **settings: Any) -> BoundaryConfig:
    return BoundaryConfig.model_validate({"quantity": quantity, **settings})


TRACK = boundary(low=-2.4, high=2.4, margin=0.4, penalty=2.0)
CENTRE = EpisodeBounds((boundary(low=-0.1, high=0.1, margin=0.05, penalty=1.0, terminate=True),))


class Line(gymnasium.Env[np.ndarray, np.ndarray]):
    """A place that moves by the action; what a step earns and costs stays the same."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([0.0, 9.0]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += float(action[0])
        info = {"cost": 1.0, "height": 2 * self.place, "name": "line"}
        return np.array([self.place, 9.0]), 5.0, False, False, info


def walk(*moves: float, boundaries: tuple[BoundaryConfig, ...] = (), limit: float | None = None) -> list[Any]:
    """(reward, terminated) of each step."""
    env = Bounded(Line(), EpisodeBounds(boundaries, limit), "line")
    env.reset(seed=0)
    return [env.step(np.array([move]))[1:3] for move in moves]


@pytest.mark.parametrize(
    ("value", "penalty"),
    [
        (0.0, 0.0),
        (2.0, 0.0),  # where the margin begins
        (2.1, 0.5),  # a quarter of it
        (2.3, 1.5),
        (-2.3, 1.5),
        (2.4, 2.0),  # the limit
        (7.0, 2.0),  # no more beyond it
        (-np.inf, 2.0),
        (np.nan, 2.0),
    ],
)
def test_a_penalty_grows_through_the_margin(value: float, penalty: float) -> None:
    assert TRACK.penalty_at(value) == pytest.approx(penalty)
    assert TRACK.is_left(value) == (not abs(value) <= 2.4)


def test_one_sided_boundaries_and_those_without_a_margin() -> None:
    low, high = boundary(low=1.0, margin=1.0, penalty=4.0), boundary(high=1.0, penalty=3.0)
    assert [low.penalty_at(value) for value in (np.inf, 2.0, 1.25, 1.0, 0.0)] == [0.0, 0.0, 3.0, 4.0, 4.0]
    assert [high.penalty_at(value) for value in (-np.inf, 0.999, 1.0, 2.0)] == [0.0, 0.0, 3.0, 3.0]
    assert [high.is_left(value) for value in (-1e9, 1.0, 1.001)] == [False, False, True]


def test_penalties_add_up_and_episodes_go_on_without_terminate() -> None:
    both = (TRACK, boundary("info.height", high=6.0, margin=4.0, penalty=1.0))
    # places 1, 2, 2.2, 3: the height begins to count at 2, half a margin later it is 4
    steps = walk(1.0, 1.0, 0.2, 0.8, boundaries=both)
    assert [reward for reward, _ in steps] == pytest.approx([5.0, 4.5, 5.0 - 1.0 - 0.6, 5.0 - 2.0 - 1.0])
    assert not any(terminated for _, terminated in steps)


@pytest.mark.parametrize("quantity", ["observation[0]", "info.height"])
def test_an_episode_ends_as_soon_as_the_quantity_is_outside(quantity: str) -> None:
    reach = 2.0 if quantity == "observation[0]" else 4.0
    inside = boundary(quantity, low=-reach, high=reach, terminate=True)
    assert walk(1.0, 1.0, 0.5, boundaries=(inside,)) == [(5.0, False), (5.0, False), (5.0, True)]
    assert walk(-2.5, boundaries=(inside,)) == [(5.0, True)]


@pytest.mark.parametrize("quantity", ["action", "action[0]"])
def test_what_is_done_may_have_a_boundary(quantity: str) -> None:
    inside = boundary(quantity, high=1.0, penalty=2.0, terminate=True)
    assert walk(0.5, -3.0, 1.5, boundaries=(inside,)) == [(5.0, False), (5.0, False), (3.0, True)]


def test_an_episode_ends_once_it_has_cost_more_than_it_may() -> None:
    env = Bounded(Line(), EpisodeBounds(max_episode_cost=2.0), "line")
    for _ in range(2):  # the next episode begins at 0
        env.reset(seed=0)
        assert [env.step(np.zeros(1))[2] for _ in range(3)] == [False, False, True]
    assert walk(0.0, boundaries=(boundary("cost", high=0.5, penalty=1.0, terminate=True),)) == [(4.0, True)]


def test_both_ends_in_one_step_are_told_and_a_time_limit_alone_still_truncates() -> None:
    env = Bounded(TimeLimit(Line(), 2), EpisodeBounds((boundary(high=1.0, terminate=True),)), "line")
    for last, ended in ((2.0, (True, True)), (0.0, (False, True))):
        env.reset(seed=0)
        env.step(np.zeros(1))
        assert env.step(np.array([last]))[2:4] == ended


@pytest.mark.parametrize(("key", "message"), [("torque", "no number 'torque'"), ("name", "no number 'name'")])
def test_a_key_that_is_not_told_is_named_at_the_first_step(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"boundaries\.1\.quantity.*'line' told {message}.*keys: cost, height, name"):
        walk(0.0, boundaries=(TRACK, boundary(f"info.{key}", high=1.0, terminate=True)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": 1.0}, "needs `low`, `high` or both"),
        ({"low": 1.0}, "does nothing; give it a `penalty` above 0, `terminate: true` or both"),
        ({"low": 1.0, "margin": 1.0, "terminate": True}, "margin 1 is where a penalty begins, and `penalty` is 0"),
        ({"low": 1.0, "high": 1.0, "penalty": 1.0}, "low 1 is not below high 1"),
        ({"low": 0.0, "high": 1.0, "penalty": 1.0, "margin": 0.6}, "margin 0.6 leaves nothing.*at most 0.5"),
        ({"quantity": "reward", "low": 0.0, "penalty": 1.0}, "pattern"),
    ],
)
def test_boundaries_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        boundary(**settings)


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("observation[2]", r"boundaries\.1\.quantity: found quantity 'observation\[2\]', .* has 2 components"),
        ("action[1]", r"boundaries\.1\.quantity: .* has 1 component: action\[0\]"),
    ],
)
def test_a_component_the_environment_lacks_is_named(quantity: str, message: str) -> None:
    fits = boundary("action", high=1.0, terminate=True)
    check_bounds(EpisodeBounds((TRACK, fits)), Line.observation_space, Line.action_space)
    with pytest.raises(ConfigError, match=message):
        check_bounds(
            EpisodeBounds((TRACK, boundary(quantity, low=0.0, terminate=True))),
            Line.observation_space,
            Line.action_space,
        )


# --- back-ends --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole")
    config = EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1, fingerprint_steps=10)
    take_snapshot(config, PROJECT, folder)
    return folder


def rollout(folder: Path, backend: str) -> Iterator[tuple[Any, ...]]:
    """Flags, numbers and true last observations of 150 steps of random actions."""
    with closing(make_envs(folder, 2, backend=backend, bounds=CENTRE)) as envs:
        envs.reset(seed=3)
        rng = np.random.default_rng(3)
        for _ in range(150):
            *arrays, info = envs.step(rng.integers(2, size=2))
            ended = arrays[2] | arrays[3]
            yield *arrays, np.stack(list(info["final_obs"][ended])) if ended.any() else np.zeros((0, 4), np.float32)


def test_processes_give_what_one_after_the_other_gives(cartpole: Path) -> None:
    serial, processes = (list(rollout(cartpole, backend)) for backend in ("serial", "processes"))
    for one, other in zip(serial, processes, strict=True):
        assert [array.tobytes() for array in one] == [array.tobytes() for array in other]
    final = np.concatenate([step[-1] for step in serial])
    assert (np.abs(final[:, 0]) > 0.1).any()  # beyond the boundary
    assert (np.abs(final[:, 0]) < 0.15).all()  # and no further than one step


def test_auto_keeps_bounds_and_a_native_back_end_that_is_named_is_refused(cartpole: Path, tmp_path: Path) -> None:
    bounded = replace(resolve(EnvironmentConfig(id="CartPole-v1"), PROJECT), bounds=CENTRE)
    assert choose(bounded) == "serial"
    for backend in ("batched", "device"):
        with pytest.raises(ConfigError, match=rf"'{backend}' keeps no bounds.*use \"auto\", or one of serial, proc"):
            make_envs(cartpole, 2, backend=backend, bounds=CENTRE)
    assert choose_backend(cartpole) == "batched"
    assert choose_backend(cartpole, CENTRE) == "serial"
    with closing(make_envs(cartpole, 2, bounds=CENTRE)) as envs:
        assert type(envs).__name__ == "SerialVectorEnv"
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), PROJECT, tmp_path)
    for recorded, collecting in (("processes", "processes"), ("batched", "serial")):
        settle_backend(tmp_path, recorded)
        assert choose_backend(tmp_path, CENTRE) == collecting
    settle_backend(tmp_path, "device")
    with pytest.raises(ConfigError, match="'device' keeps no bounds"):
        choose_backend(tmp_path, CENTRE)


def test_preflight_finds_a_back_end_that_cannot_keep_them() -> None:
    path = PROJECT / "configs" / "cartpole.yaml"
    bounds = {"training.boundaries": [{"quantity": "observation[0]", "high": 1.0, "terminate": True}]}
    preflight.check(load_config(path, bounds), PROJECT)
    with pytest.raises(ConfigError, match="'device' keeps no bounds"):
        preflight.check(load_config(path, {**bounds, "environment.backend": "device"}), PROJECT)


def test_nobody_else_has_them(cartpole: Path) -> None:
    def wrappers(env: gymnasium.Env[Any, Any]) -> set[str]:
        found = set()
        while isinstance(env, gymnasium.Wrapper):
            found.add(type(env).__name__)
            env = env.env
        return found

    with closing(make_env(cartpole)) as env:
        assert "Bounded" not in wrappers(env)
    with closing(make_env(cartpole, bounds=CENTRE)) as env:
        assert "Bounded" in wrappers(env)

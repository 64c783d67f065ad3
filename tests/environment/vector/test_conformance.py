"""Every back-end over the environments it has: what any of them promises, and what exact ones share to the bit."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import load_backend, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault

CLASSIC = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")
ROBOTS = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5",
    "Ant-v5", *(f"loomrl/{name}Velocity-v1" for name in ("Ant", "HalfCheetah", "Hopper", "Swimmer", "Walker2d")),
)  # fmt: skip
SWITCHING = "switching_env:Switching-v0"
EXACT = [("batched", name) for name in CLASSIC] + [("mujoco", name) for name in ROBOTS]
EXACT += [("processes", "CartPole-v1"), ("processes", SWITCHING)]
OTHERS = [
    *[("device", name) for name in ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")],
    *[("envpool", name) for name in ("CartPole-v1", "HalfCheetah-v5")],
]
ALL = [("serial", "CartPole-v1"), ("serial", "Hopper-v5"), ("serial", SWITCHING), *EXACT, *OTHERS]
SAME_STEP_ONLY = ("device", "envpool")
NUM_ENVS, LIMIT = 3, 23


def recipe(name: str, limit: int | None = LIMIT, **kwargs: Any) -> Recipe:
    definition = resolve(EnvironmentConfig(id=name, kwargs=kwargs), Path("."))
    return Recipe(replace(definition, max_episode_steps=limit))


@contextmanager
def made(backend: str, name: str, autoreset: str = "same_step", num_envs: int = NUM_ENVS) -> Iterator[VectorEnv]:
    if backend == "envpool":
        pytest.importorskip("envpool")
    with closing(make_vector(recipe(name), num_envs, autoreset, backend)) as envs:  # type: ignore[arg-type]
        yield envs


def numpy(value: Any) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def step(envs: VectorEnv, actions: np.ndarray) -> tuple[Any, ...]:
    """A step in numpy, whatever the back-end takes."""
    given = torch.from_numpy(actions) if type(envs).__module__.endswith(".device") else actions
    *arrays, info = envs.step(given)
    return *map(numpy, arrays), info


def final(info: dict[str, Any], index: int) -> np.ndarray:
    return numpy(info["final_obs"][index])


@pytest.mark.parametrize(("backend", "name"), ALL)
def test_shapes_dtypes_time_limit_and_final_observations(backend: str, name: str) -> None:
    with made(backend, name) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert envs.num_envs == NUM_ENVS
        assert envs.observation_space.shape == (NUM_ENVS, *envs.single_observation_space.shape)
        envs.action_space.seed(0)
        obs = numpy(envs.reset(seed=3)[0])
        elapsed = np.zeros(NUM_ENVS, int)
        for _ in range(2 * LIMIT + 4):
            assert obs.shape == envs.observation_space.shape
            assert obs.dtype == envs.observation_space.dtype
            before = obs.copy()
            obs, reward, terminated, truncated, info = step(envs, envs.action_space.sample())
            assert reward.shape == terminated.shape == truncated.shape == (NUM_ENVS,)
            assert terminated.dtype == truncated.dtype == np.bool_
            assert reward.dtype == (np.float32 if backend == "device" else np.float64)
            elapsed += 1
            assert (truncated == (elapsed == LIMIT)).all()
            ended = terminated | truncated
            if ended.any():
                assert (numpy(info["_final_obs"]) == ended).all()
            for index in np.flatnonzero(ended):
                assert np.abs(final(info, index) - before[index]).max() > 0
                assert np.abs(final(info, index) - obs[index]).max() > 0  # that is the next episode's first
            elapsed[ended] = 0


@pytest.mark.parametrize(("backend", "name"), ALL)
def test_a_seed_repeats_the_run(backend: str, name: str) -> None:
    with made(backend, name) as envs:
        envs.action_space.seed(1)
        actions = [envs.action_space.sample() for _ in range(LIMIT + 6)]

        def play(seed: int) -> bytes:
            first = numpy(envs.reset(seed=seed)[0]).tobytes()
            return first + b"".join(step(envs, one)[0].tobytes() for one in actions)

        assert play(11) == play(11)
        assert play(11) != play(12)


@pytest.mark.parametrize(("backend", "name"), EXACT)
def test_exact_back_ends_give_the_bits_of_single_environments(backend: str, name: str) -> None:
    with made(backend, name) as envs, made("serial", name) as reference:
        reference.action_space.seed(2)
        assert_same(envs.reset(seed=5), reference.reset(seed=5))
        for number in range(130):
            if number == 70:  # without a seed every environment goes on drawing from its own generator
                assert_same(envs.reset(), reference.reset())
            actions = reference.action_space.sample()
            if number > 90 and actions.dtype.kind == "f":
                actions = actions * np.float32(1.7)  # outside the bounds environments clip, or charge for
            assert_same(envs.step(actions), reference.step(actions))


@pytest.mark.parametrize(("backend", "name"), EXACT)
def test_what_was_renewed_gives_the_bits_of_what_is_new(backend: str, name: str) -> None:
    with made(backend, name, "disabled") as used, made(backend, name, "disabled") as new:
        used.action_space.seed(4)
        used.reset(seed=1)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = used.step(used.action_space.sample())
            ended = bool((terminated | truncated).any())
        used.renew()  # type: ignore[attr-defined]
        if backend != "processes":  # there it would end the workers
            with pytest.raises(EnvironmentFault, match="must be reset before it is stepped"):
                used.step(used.action_space.sample())
        new.action_space.seed(4)
        seeds: Any = [9, 3, 5]
        assert_same(used.reset(seed=seeds), new.reset(seed=seeds))
        ended = False
        while not ended:
            actions = new.action_space.sample()
            wanted = new.step(actions)
            assert_same(used.step(actions), wanted)
            ended = bool((wanted[2] | wanted[3]).any())


@pytest.mark.parametrize(("backend", "name"), EXACT)
def test_reset_masks_begin_some_episodes_and_leave_the_others(backend: str, name: str) -> None:
    with made(backend, name, "disabled") as envs, made("serial", name, "disabled") as reference:
        reference.action_space.seed(3)
        assert_same(envs.reset(seed=[9, 4, 9]), reference.reset(seed=[9, 4, 9]))  # type: ignore[arg-type]
        for number in range(60):
            actions = reference.action_space.sample()
            found, wanted = envs.step(actions), reference.step(actions)
            assert_same(found, wanted)
            mask = wanted[2] | wanted[3]
            if mask.any():
                seeds = [number, None, number + 1]
                options = [{"reset_mask": mask.copy()} for _ in range(2)]
                begun = [one.reset(seed=seeds, options=given)  # type: ignore[arg-type]
                         for one, given in zip((envs, reference), options, strict=True)]  # fmt: skip
                assert_same(*begun)


def assert_same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Equal to the bit, infos included; final observations may come as an array of all true successors."""
    *arrays, info = found
    *expected, wanted_info = wanted
    for one, other in zip(arrays, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == np.ascontiguousarray(other).tobytes()
    assert info.keys() == wanted_info.keys()
    for key, value in wanted_info.items():
        if key == "final_info":
            assert_same((info[key],), (value,))
        elif key == "final_obs":
            for index in np.flatnonzero(wanted_info["_final_obs"]):
                assert np.asarray(info[key][index]).tobytes() == value[index].tobytes()
        else:
            assert np.array_equal(info[key], value), key


@pytest.mark.parametrize("backend", SAME_STEP_ONLY)
def test_back_ends_that_cannot_seed_an_episode_leave_it_to_an_exact_one(backend: str) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="cannot seed single episodes"):
        load_backend(backend).create(recipe("CartPole-v1"), 2, AutoresetMode.DISABLED)
    with made(backend, "CartPole-v1") as envs, pytest.raises(ConfigError, match="with one seed or none"):
        envs.reset(seed=[1, 2, 3])  # type: ignore[arg-type]
    with made(backend, "CartPole-v1", "disabled") as envs:
        assert type(envs).__name__ == "BatchedVectorEnv"


@pytest.mark.parametrize(("backend", "name"), [("batched", "CartPole-v1"), ("mujoco", "Hopper-v5")])
def test_wrong_calls_are_named(backend: str, name: str) -> None:
    with made(backend, name, "disabled") as envs:
        with pytest.raises(EnvironmentFault, match="must be reset before it is stepped"):
            envs.step(envs.action_space.sample())
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFault, match=r"actions have shape \(2,"):
            envs.step(envs.action_space.sample()[:2])
        with pytest.raises(EnvironmentFault, match="actions have dtype"):
            envs.step(np.full(envs.action_space.shape, "left"))
        with pytest.raises(ConfigError, match="reset_mask must be a boolean array"):
            envs.reset(options={"reset_mask": np.ones(2, np.bool_)})
        with pytest.raises(ConfigError, match="'low': this back-end knows `reset_mask` only"):
            envs.reset(options={"low": 0.0})
        with pytest.raises(ConfigError, match="2 seeds for 3 environments"):
            envs.reset(seed=[1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("serial", "CartPole-v1"),
        ("serial", "Pendulum-v1"),
        ("processes", "CartPole-v1"),
        ("serial", SWITCHING),
        *EXACT[:1],
    ],
)
def test_wrong_actions_reach_no_environment(backend: str, name: str) -> None:
    with made(backend, name) as envs, made(backend, name) as untouched:
        assert_same(envs.reset(seed=0), untouched.reset(seed=0))
        right = envs.action_space.sample()
        wrong: list[tuple[Any, str]] = [
            (right[:2], r"actions have shape \(2,.*is needed"),
            (np.concatenate([right, right]), r"actions have shape \(6,"),
            (right[:, None], "actions have shape"),
            ([[0], [0, 1], [0]], "actions are no array"),
            (np.full(right.shape, "left"), "actions have dtype"),
        ]
        if right.dtype.kind in "bi":
            wrong.append((right + 0.7, f"environment '{name}': actions have dtype float64; {right.dtype} is needed"))
        for actions, message in wrong:
            with pytest.raises(EnvironmentFault, match=message):
                envs.step(actions)
        assert_same(envs.step(right), untouched.step(right))


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_no_number_of_an_info_is_cut_to_the_type_of_the_first_one(backend: str) -> None:
    definition = resolve(EnvironmentConfig(id="Tells", entry_point="telling_env:Tells"), Path("."))
    with closing(make_vector(Recipe(definition), 3, "disabled", backend)) as envs:
        envs.reset(seed=[0, 1, 2])
        *_, info = envs.step(np.zeros(3, np.int64))
    assert {key: info[key].tolist() for key in ("way", "goal", "far", "other")} == {
        "way": [0.0, 0.75, 0.0], "goal": [0, 2, 0], "far": [1, 1000, 0], "other": [0.0, 0.0, 1.5]
    }  # fmt: skip
    assert info["_way"].tolist() == [True, True, False]

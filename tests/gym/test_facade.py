"""The awaited environments, as the specification shows them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from loomrl import EnvironmentType, LoomRLGym, NexusWorker, register_environment
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.gym.domains import get_domain, own_names


def played(coroutine: Callable[[LoomRLGym], Awaitable[None]]) -> None:
    async def run() -> None:
        async with LoomRLGym(seed=3) as gym:
            await coroutine(gym)

    asyncio.run(run())


def test_the_specifications_example_runs() -> None:
    async def use(gym: LoomRLGym) -> None:
        math = await gym.create_environment(EnvironmentType.MATH, {"difficulty": "intermediate", "max_steps": 50})
        state = await math.reset()
        assert state.difficulty == 3
        assert len(state.choices) == 4
        next_state, reward, done, info = await math.step(0)
        assert done is True
        assert (info["terminated"], info["truncated"]) == (True, False)
        assert reward in (0.0, pytest.approx(0.8))  # a choice shows no working
        assert next_state.choices == ()
        assert set(info["rewards"]) == {"correctness", "logical_progression", "final_accuracy"}
        assert gym.environments == {"math-0": math}

    played(use)


def test_every_type_is_a_domain_and_plays() -> None:
    assert sorted(kind.value for kind in EnvironmentType) == own_names()

    async def use(gym: LoomRLGym) -> None:
        for kind in EnvironmentType:
            environment = await gym.create_environment(kind, {"difficulty": 1})
            state = await environment.reset()
            assert (state.picture is not None) == (kind is EnvironmentType.MULTIMODAL)
            done, steps = False, 0
            while not done:
                state, _, done, _ = await environment.step(0)
                steps += 1
            assert steps <= 50

    played(use)


def test_a_text_is_an_action_too() -> None:
    async def use(gym: LoomRLGym) -> None:
        environment = await gym.create_environment("math", {"kinds": ["addition"]})
        state = await environment.reset()
        left, right = state.text.rstrip("=").split("+")
        _, reward, done, _ = await environment.step(str(int(left) + int(right)))
        assert (reward, done) == (1.0, True)
        with pytest.raises(EnvironmentFault, match="call reset"):
            await environment.step("1")

    played(use)


def test_too_many_steps_truncate() -> None:
    async def use(gym: LoomRLGym) -> None:
        config = {"kinds": ["calculate"], "max_steps": 2}
        environment = await gym.create_environment(EnvironmentType.TOOLCALL, config)
        await environment.reset()
        call = '{"tool": "list_files", "arguments": {}}'
        _, _, done, _ = await environment.step(call)
        assert not done
        _, _, done, info = await environment.step(call)
        assert (done, info["terminated"], info["truncated"]) == (True, False, True)

    played(use)


def test_environments_of_a_seed_draw_the_same() -> None:
    texts: list[list[str]] = []
    for _ in range(2):

        async def use(gym: LoomRLGym) -> None:
            first = await gym.create_environment(EnvironmentType.MATH, {"difficulty": 5})
            second = await gym.create_environment(EnvironmentType.MATH, {"difficulty": 5})
            states = [await first.reset(), await first.reset(), await second.reset()]
            texts.append([state.text for state in states])

        played(use)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_one_environment_does_not_hold_up_another() -> None:
    async def use(gym: LoomRLGym) -> None:
        environments = [await gym.create_environment(EnvironmentType.TOOLCALL, {"difficulty": 5}) for _ in range(8)]
        await asyncio.gather(*(environment.reset() for environment in environments))
        results = await asyncio.gather(*(environment.step(0) for environment in environments))
        assert len(results) == 8

    played(use)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dificulty": 1}, "dificulty: .*the config takes: difficulty, max_steps, kinds"),
        ({"difficulty": "hopeless"}, "one of beginner"),
        ({"max_steps": 0}, "max_steps"),
        ({"kinds": ["poems"]}, "no tasks of kind 'poems'"),
    ],
)
def test_a_wrong_config_is_named(config: dict[str, object], message: str) -> None:
    async def use(gym: LoomRLGym) -> None:
        with pytest.raises(ConfigError, match=message):
            await gym.create_environment(EnvironmentType.MATH, config)
        assert gym.environments == {}

    played(use)


@pytest.mark.parametrize("action", [4, -1, 0.5, None])
def test_what_is_no_choice_is_named(action: object) -> None:
    async def use(gym: LoomRLGym) -> None:
        environment = await gym.create_environment(EnvironmentType.MATH)
        await environment.reset()
        with pytest.raises(ConfigError, match=f"action {action!r} is no choice; there are 4"):
            await environment.step(action)  # type: ignore[arg-type]

    played(use)


def test_a_domain_makes_its_pictures_itself() -> None:
    task = get_domain("multimodal").generate(np.random.default_rng(0), 0)
    assert task.picture is not None
    assert task.picture.shape == (64, 64, 3)


def test_registered_names_are_created_too(loomrl_home: Path) -> None:
    register_environment("MyPole", "gymnasium.envs.classic_control:CartPoleEnv", "1.0.0", max_episode_steps=3)

    async def use(gym: LoomRLGym) -> None:
        for name in ("MyPole", "CartPole-v1"):
            pole = await gym.create_environment(name, {"sutton_barto_reward": False})
            state = await pole.reset()
            assert pole.observation_space.contains(state)
            first, reward, done, info = await pole.step(1)
            assert (first.shape, reward, done) == ((4,), 1.0, False)
            assert (info["terminated"], info["truncated"]) == (False, False)
            assert np.array_equal(await pole.reset(seed=3), await pole.reset(seed=3))
        assert list(gym.environments) == ["MyPole-0", "CartPole-v1-1"]
        cut = await gym.create_environment("MyPole")
        await cut.reset()
        ends = [(await cut.step(step % 2))[2:] for step in range(3)]
        assert [done for done, _ in ends] == [False, False, True]
        assert (ends[-1][1]["terminated"], ends[-1][1]["truncated"]) == (False, True)
        with pytest.raises(ConfigError, match="'MyPol'.*did you mean MyPole.*the domains are: .*math"):
            await gym.create_environment("MyPol")
        with pytest.raises(ConfigError, match="environment.kwargs of 'MyPole'.*unknown_key"):
            await gym.create_environment("MyPole", {"unknown_key": 1})
        with pytest.raises(ConfigError, match="MyPole-0 is of no domain"):
            NexusWorker().register_gym_environments(gym.environments)

    played(use)

"""Where the frames of a stack stand: in what the wrapper really gives, for every kind of observation."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from loomrl.environment.wrappers.flat import FlatBox, as_one_array, is_one_array
from loomrl.environment.wrappers.stacking import FrameStack, frame_places, frame_space

SPACES: dict[str, spaces.Space[Any]] = {
    "image": spaces.Box(0, 255, (6, 5, 1), np.uint8),
    "colours": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (2, 6, 5), np.uint8),
    "flat picture": spaces.Box(0, 255, (6, 5), np.uint8),
    "vector": spaces.Box(-1, 1, (4,), np.float32),
    "choice": spaces.Discrete(300),
    "structure": spaces.Dict(
        {
            "z": spaces.Box(0, 255, (6, 5, 1), np.uint8),
            "a": spaces.Tuple([spaces.Discrete(7, start=2), spaces.MultiBinary((2, 3)), spaces.Box(-1, 1, (2,))]),
        }
    ),
}


class Samples(gymnasium.Env[Any, int]):
    """Random elements of a space; remembers the episode's."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        space.seed(0)
        self.shown: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self.shown = [self.observation_space.sample()]
        return self.shown[-1], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1], 0.0, False, False, {}


@pytest.mark.parametrize("kind", SPACES)
def test_places_are_those_of_the_wrapper(kind: str) -> None:
    samples = Samples(SPACES[kind])
    env = as_one_array(FrameStack(samples, 3))
    assert frame_space(env) == SPACES[kind]
    places = frame_places(SPACES[kind], 3)
    assert sorted(places.ravel()) == list(range(int(np.prod(env.observation_space.shape))))
    env.reset(seed=0)
    stacks = [np.ravel(env.step(0)[0]) for _ in range(4)]
    flat = np.ravel if is_one_array(SPACES[kind]) else FlatBox(SPACES[kind]).flatten
    for number, stacked in enumerate(stacks, start=1):
        shown = [samples.shown[max(0, number - age)] for age in (2, 1, 0)]
        for frame, observation in zip(stacked[places], shown, strict=True):
            assert sorted(frame) == sorted(flat(observation))  # any order within a frame, but one for all:
    for earlier, later in zip(stacks, stacks[1:], strict=False):
        np.testing.assert_array_equal(later[places[:-1]], earlier[places[1:]])


def test_no_frames_without_a_stack() -> None:
    assert frame_space(as_one_array(Samples(SPACES["structure"]))) is None

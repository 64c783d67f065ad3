"""Structured observations as one vector, and the last observations as one."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.utils.env_checker import data_equivalence

from loomrl.environment.spaces import space_from_json, space_to_json
from loomrl.environment.wrappers.flat import FlatBox, FlattenedObservation, is_image, rounded
from loomrl.environment.wrappers.stacking import FrameStack, stacked_space
from loomrl.errors import ConfigError

CAMERA = Box(0, 255, (6, 5, 3), np.uint8)
STRUCTURED = Dict(
    camera=CAMERA,
    arm=Tuple([Box(-1.0, 1.0, (2, 2), np.float32), Discrete(3, start=-1)]),
    dials=MultiDiscrete([[2, 3], [4, 300]], start=[[0, 1], [2, 3]]),
    doors=MultiBinary(2),
)


def test_vectors_stand_for_elements() -> None:
    space = FlatBox(STRUCTURED)
    STRUCTURED.seed(1)
    for _ in range(20):
        element = STRUCTURED.sample()
        flat = space.flatten(element)
        assert flat.dtype == np.float32
        assert flat.shape == space.shape == (4 + 1 + 90 + 4 + 2,)
        assert space.contains(flat)
        assert data_equivalence(space.unflatten(flat), element, exact=True)


def test_layout_is_in_the_json_and_comes_back() -> None:
    described = space_to_json(FlatBox(STRUCTURED))
    assert described["layout"] == [
        {"name": "arm.0", "kind": "box", "offset": 0, "shape": [2, 2]},
        {"name": "arm.1", "kind": "discrete", "offset": 4, "shape": []},
        {"name": "camera", "kind": "image", "offset": 5, "shape": [6, 5, 3]},
        {"name": "dials", "kind": "multi_discrete", "offset": 95, "shape": [2, 2]},
        {"name": "doors", "kind": "multi_binary", "offset": 99, "shape": [2]},
    ]
    assert described["space"] == space_to_json(STRUCTURED)
    assert (described["dtype"], described["shape"]) == ("float32", [101])
    again = space_from_json(described)
    assert isinstance(again, FlatBox)
    assert again == FlatBox(STRUCTURED)
    assert again != FlatBox(MultiBinary(2))


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (MultiDiscrete([3, 200]), np.uint8),
        (MultiDiscrete([3, 2], start=[-4, 0]), np.int16),
        (Dict(a=CAMERA, b=MultiBinary(3)), np.uint8),
        (Dict(a=CAMERA, b=Box(-1.0, 1.0, (1,), np.float32)), np.float32),
        (Dict(a=Box(-1.0, 1.0, (1,), np.float32), b=Discrete(2**30)), np.float64),
    ],
)
def test_the_smallest_exact_dtype(space: gymnasium.Space[Any], dtype: type) -> None:
    assert FlatBox(space).dtype == dtype


def test_whole_components_stay_whole() -> None:
    space = FlatBox(Dict(a=Box(-1.0, 1.0, (2,), np.float32), b=Discrete(5)))
    assert space.whole.tolist() == [False, False, True]
    assert rounded(space, np.array([[0.3, 0.7, 3.7]])).tolist() == [[0.3, 0.7, 4.0]]
    assert not space.contains(np.array([0.0, 0.0, 1.5], np.float32))


@pytest.mark.parametrize(
    ("space", "name"), [(Sequence(Discrete(2)), "Sequence"), (Dict(a=Dict(b=Text(4))), r"part 'a\.b'")]
)
def test_what_has_no_fixed_size_is_named(space: gymnasium.Space[Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*is not supported; supported: Box, Discrete"):
        FlatBox(space)


def test_images_are_bytes_of_three_dimensions() -> None:
    assert is_image(CAMERA)
    assert not is_image(Box(0, 255, (6, 5), np.uint8))
    assert not is_image(Box(0.0, 1.0, (6, 5, 3), np.float32))


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps it has taken, always in the same array."""

    observation_space = Dict(
        number=Box(0, 100, (1,), np.int64), picture=Box(0, 255, (5, 6, 1), np.uint8), bit=Discrete(2)
    )
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.number, self.picture = np.zeros(1, np.int64), np.zeros((5, 6, 1), np.uint8)

    def _observation(self) -> Any:
        return {"number": self.number, "picture": self.picture, "bit": np.int64(self.number[0] % 2)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.number[:], self.picture[:] = 0, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.number += 1
        self.picture += 1
        return self._observation(), 0.0, bool(self.number[0] >= 5), False, {}


def test_stacked_frames_are_the_last_ones_and_begin_anew_at_resets() -> None:
    env = FrameStack(Counting(), 3)
    space = env.observation_space
    assert isinstance(space, Dict)
    for _ in range(2):  # nothing of an episode reaches the next
        observation, _ = env.reset()
        seen = [observation]
        seen += [env.step(0)[0] for _ in range(4)]
        assert [frames["number"][:, 0].tolist() for frames in seen] == [
            [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4],
        ]  # fmt: skip
        assert [frames["picture"][2, 3].tolist() for frames in seen] == [
            [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4],
        ]  # fmt: skip
        assert seen[3]["bit"].tolist() == [1, 0, 1]
        assert all(space.contains(frames) for frames in seen)


def test_stacked_spaces_keep_their_kinds() -> None:
    stacked = stacked_space(STRUCTURED, 2)
    assert isinstance(stacked, Dict)
    assert stacked["camera"].shape == (6, 5, 6)  # channels last stay last
    assert is_image(stacked["camera"])
    assert stacked_space(Box(0, 255, (3, 9, 8), np.uint8), 2).shape == (6, 9, 8)
    assert stacked["doors"].shape == (2, 2)
    assert stacked_space(Discrete(3, start=-1), 2) == MultiDiscrete([3, 3], start=[-1, -1])


def test_the_wrapper_flattens_reset_and_step() -> None:
    env = FlattenedObservation(FrameStack(Counting(), 2))
    assert env.observation_space.shape == (2 + 2 + 60,)
    first, _ = env.reset()
    second, *_ = env.step(0)
    assert first.tolist() == [0] * 64
    assert second[:4].tolist() == [0, 1, 0, 1]  # bit, then number
    assert second[4:].tolist() == [0, 1] * 30

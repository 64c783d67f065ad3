import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from loomrl.environment.spaces import space_from_json, space_to_json
from loomrl.errors import ArtifactError, ConfigError

SPACES = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 2.5]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-(2**60), 2**60, (2,), np.int64),
    spaces.Box(-1.0, 1.0, (), np.float32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, 0]]),
    spaces.MultiBinary((2, 2)),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32))),
    spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Discrete(3)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip(space: spaces.Space) -> None:
    through_text = json.loads(json.dumps(space_to_json(space), allow_nan=False))
    assert space_from_json(through_text) == space


def test_an_image_is_described_shortly() -> None:
    described = space_to_json(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    assert described == {"type": "Box", "shape": [84, 84, 3], "dtype": "uint8", "low": 0, "high": 255}


@given(st.lists(st.tuples(st.floats(-1e6, 0, width=32), st.floats(0, 1e6, width=32)), min_size=1, max_size=6))
def test_any_bounds_survive(bounds: list[tuple[float, float]]) -> None:
    low, high = (np.array(part, dtype=np.float32) for part in zip(*bounds, strict=True))
    space = spaces.Box(low, high, dtype=np.float32)
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_a_space_without_fixed_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="not supported; supported: Box"):
        space_to_json(spaces.Text(5))


@pytest.mark.parametrize("value", [{}, {"type": "Sphere"}, {"type": "Discrete", "n": -1, "start": 0, "dtype": "int64"}])
def test_a_wrong_description_is_refused(value: dict) -> None:
    with pytest.raises(ArtifactError, match="not the description of a space"):
        space_from_json(value)

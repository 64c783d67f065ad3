"""Observations of several parts, sent as the environment shows them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.serving.decisions.packing import packed
from loomrl.serving.decisions.requests import observation_arrays
from loomrl.serving.policy.model import GRAPH, MANIFEST, ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.system.files import write_sums
from loomrl.system.http.problems import Problem
from tests.support.inside import Inside
from tests.support.served import served

ARM = spaces.Dict(
    joints=spaces.Box(-3.0, 3.0, (2, 2), np.float64),
    mode=spaces.Discrete(3, start=1),
    grip=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([4, 5], start=[0, 10])]),
)
CAMERA = spaces.Tuple([spaces.Box(0, 255, (6, 6, 1), np.uint8), spaces.Discrete(2)])


def policy_for(space: spaces.Space[Any]) -> ServedPolicy:
    network = ActorCriticPolicy.for_spaces(
        "ppo", FlatBox(space), spaces.Discrete(2), (4,), "tanh", False, torch.Generator().manual_seed(1)
    )
    return served(network)


@pytest.fixture(scope="module")
def arm() -> ServedPolicy:
    return policy_for(ARM)


def as_json(value: Any) -> Any:
    """What an agent would send of an element of a space."""
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return np.asarray(value).tolist()


@pytest.mark.parametrize("space", [ARM, CAMERA], ids=["arm", "camera"])
def test_what_is_packed_is_what_the_environment_flattens(space: spaces.Space[Any]) -> None:
    policy, flat = policy_for(space), FlatBox(space)
    space.seed(3)
    elements = [space.sample() for _ in range(5)]
    expected = np.stack([flat.flatten(element) for element in elements])
    found = observation_arrays(packed([as_json(element) for element in elements], policy), policy)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    vectors = expected.tolist()
    mixed = [as_json(elements[0]), *vectors[1:]]
    np.testing.assert_array_equal(observation_arrays(packed(mixed, policy), policy), expected)
    assert packed(expected, policy) is expected  # tensors of the V2 protocol


GOOD = {"grip": [[0, 1], [3, 14]], "joints": [[0.5, 1.0], [2, -3]], "mode": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": 4}, "`observation.mode` must be within 1 to 3"),
        ({"mode": 1.5}, "`observation.mode` must hold int64 numbers, found fractions"),
        ({"mode": [1]}, r"`observation.mode` has shape \[1\], expected \[\]"),
        ({"mode": True}, "`observation.mode` must hold int64 numbers, found booleans"),
        ({"joints": [[0.5, 1.0], [2]]}, "`observation.joints` is ragged"),
        ({"joints": [[0.5, 1.0]]}, r"`observation.joints` has shape \[1, 2\], expected \[2, 2\]"),
        ({"joints": "far"}, "`observation.joints` must hold float64 numbers, found text"),
        ({"joints": {}}, r"`observation.joints` has shape \[\]"),
        ({"grip": [[0, 2], [3, 14]]}, "`observation.grip.0` must be within 0 to 1"),
        ({"grip": [[0, 1], [3, 15]]}, r"`observation.grip.1` must be within \[0, 10\] to \[3, 14\]"),
        ({"grip": [[0, 1]]}, "`observation.grip` must be a list of 2 parts"),
        ({"grip": 1}, "`observation.grip` must be a list of 2 parts"),
        ({"hand": 1}, "`observation` must be an object with the keys grip, joints, mode, found 'grip', 'hand'"),
    ],
)
def test_the_part_that_is_wrong_is_named(arm: ServedPolicy, change: dict[str, Any], message: str) -> None:
    assert len(packed([GOOD], arm)[0]) == 9
    with pytest.raises(Problem, match=message):
        packed([GOOD | change], arm)
    with pytest.raises(Problem, match=rf"requests\[1\]: {message}"):
        packed([GOOD, GOOD | change, GOOD], arm)


@pytest.mark.parametrize("wrong", [3, "here", None, [[1, 2], 3], True])
def test_neither_an_object_nor_a_vector(arm: ServedPolicy, wrong: Any) -> None:
    with pytest.raises(Problem, match="`observation` must be an object with the keys"):
        packed([wrong], arm)


def test_a_vector_is_checked_as_ever(arm: ServedPolicy) -> None:
    with pytest.raises(Problem, match=r"has shape \[2\]; p observes \[9\]"):
        observation_arrays(packed([[1.0, 2.0]], arm), arm)


def test_a_server_takes_them(loomrl_home: Path, tmp_path: Path, arm: ServedPolicy) -> None:
    vector = FlatBox(ARM).flatten({"grip": (np.array([0, 1]), np.array([3, 14])), "mode": 3,
                                   "joints": np.array([[0.5, 1.0], [2, -3]])})  # fmt: skip
    answer = arm.answer(vector[None])
    manifest = arm.manifest.model_copy(
        update={"probe_observations": [vector.tolist()], "probe_actions": answer.action.tolist()}
    )
    (tmp_path / GRAPH).write_bytes(arm.graph)
    manifest.write(tmp_path / MANIFEST)
    write_sums(tmp_path)
    with Inside(ServerSettings("p", folders={"champion": tmp_path})) as server:
        one = server.decide("a", GOOD).json()
        assert (one["action"], one["value"]) == (answer.action[0], pytest.approx(float(answer.value[0])))
        requests = [{"agent_id": name, "observation": GOOD} for name in ("a", "b")]
        several = server.ask("POST", "/decide", {"requests": requests}).json()["decisions"]
        assert [found["value"] for found in several] == [one["value"]] * 2
        refused = server.decide("a", GOOD | {"mode": 0})
        assert (refused.status_code, refused.json()["error"]) == (400, "`observation.mode` must be within 1 to 3")
        tensor = {"name": "observation", "datatype": "FP64", "shape": [1, 9], "data": vector.tolist()}
        inferred = server.ask("POST", "/v2/models/p/infer", {"inputs": [tensor]})
        assert inferred.status_code == 200, inferred.text

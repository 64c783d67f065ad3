"""What a policy may do in a box of observations, against what onnxruntime computes in float32."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.certified.choices import possible_actions
from loomrl.safety.certified.graph import parse_network
from tests.support import networks


def computed(graph: bytes, obs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The outputs (N, k) of observations (N, d)."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    rows = [session.run(None, {"input": row[None]})[0] for row in obs.astype(np.float32)]
    return np.concatenate(rows).astype(np.float64)


def logits(weights: list[float], biases: list[float]) -> bytes:
    """Of one observation x: weights * x + biases."""
    nodes = [networks.helper.make_node("Gemm", ["input", "w", "b"], ["output"])]
    constants = [networks.tensor("w", [weights]), networks.tensor("b", biases)]
    made: bytes = networks.model(nodes, 1, len(weights), constants).SerializeToString()
    return made


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_an_action_that_rounding_decides_for_is_possible(size: float) -> None:
    """In real arithmetic the second logit is larger, in float32 both are equal and the first one is taken."""
    graph = logits([0.0, size * 1e-9], [size, size])
    low, high = np.array([[1.0]]), np.array([[3.0]])
    assert computed(graph, np.array([[1.0], [2.0], [3.0]])).argmax(axis=1).tolist() == [0, 0, 0]
    _, actions, _ = possible_actions(parse_network(graph), spaces.Discrete(2))(low, high)
    assert actions.tolist() == [[0.0], [1.0]]


def test_what_is_clearly_not_taken_is_left_out() -> None:
    graph = logits([0.0, 1.0], [1.0, 0.0])
    low, high = np.array([[0.0], [0.9], [1.1]]), np.array([[0.9], [1.1], [2.0]])
    box, actions, _ = possible_actions(parse_network(graph), spaces.Discrete(2, start=5))(low, high)
    assert box.tolist() == [0, 1, 1, 2]
    assert actions.ravel().tolist() == [5.0, 5.0, 6.0, 6.0]


@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_ranges_hold_every_action_that_is_computed(activation: str) -> None:
    rng = np.random.default_rng(3)
    graph = networks.dense([3, 16, 16, 2], rng, activation).SerializeToString()
    low = rng.normal(0, 1, (20, 3))
    high = low + rng.uniform(0, 0.2, low.shape)
    space: Any = spaces.Box(-9.0, 9.0, (2,))
    box, least, most = possible_actions(parse_network(graph), space)(low, high)
    assert box.tolist() == list(range(20))
    for index in box.tolist():
        shares = np.concatenate([rng.random((50, 3)), rng.integers(0, 2, (8, 3))])
        found = computed(graph, low[index] + shares * (high[index] - low[index]))
        assert ((least[index] <= found) & (found <= most[index])).all()
        assert (most[index] - least[index] < 3.0).all()

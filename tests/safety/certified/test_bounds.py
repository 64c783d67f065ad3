"""Lines that hold activations, and bounds of networks: sound on dense samples, and equal to hand calculation."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.graph import parse_network
from loomrl.safety.certified.network import Affine, Layer, Network
from loomrl.safety.certified.packed import pack
from tests.support import networks

KINDS = {"relu": kernels.RELU, "leaky_relu": kernels.LEAKY_RELU, "clip": kernels.CLIP, "tanh": kernels.TANH}
KINDS["sigmoid"] = kernels.SIGMOID
LEAST, MOST, LEAK = -0.7, 1.3, 0.1


def activation(kind: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """In plain NumPy, from the definition."""
    return {
        "relu": lambda: np.where(value > 0, value, 0.0),
        "leaky_relu": lambda: np.where(value > 0, value, LEAK * value),
        "clip": lambda: np.minimum(np.maximum(value, LEAST), MOST),
        "tanh": lambda: np.tanh(value),
        "sigmoid": lambda: 1.0 / (1.0 + np.exp(-value)),
    }[kind]()


def intervals(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Wide, narrow and degenerate ones, on either side of every bend and across it."""
    centres = rng.normal(0, 1, 1_500) * rng.choice([0.01, 1.0, 5.0, 30.0], 1_500)
    widths = np.abs(rng.normal(0, 2, 1_500)) * rng.choice([0.0, 1e-13, 1e-6, 0.1, 1.0, 10.0], 1_500)
    found = list(zip((centres - widths).tolist(), (centres + widths).tolist(), strict=True))
    return [*found, (0.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (LEAST, MOST), (MOST, 5.0), (-5.0, LEAST), (-40.0, 40.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_lines_hold_the_activation_between_them(kind: str) -> None:
    for low, high in intervals(np.random.default_rng(0)):
        below, under, above, over = kernels.relax(KINDS[kind], low, high, LEAST, MOST, LEAK)
        value = np.linspace(low, high, 400)
        exact, room = activation(kind, value), 1e-12 * max(1.0, abs(low), abs(high))
        assert (below * value + under <= exact + room).all(), (low, high)
        assert (above * value + over >= exact - room).all(), (low, high)
        assert below >= 0.0  # all activations are monotone: neither line falls
        assert above >= 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_lines_touch_what_they_hold(kind: str) -> None:
    """Sound is easy; each line must also meet the curve somewhere, or it could be moved nearer."""
    for low, high in intervals(np.random.default_rng(1)):
        below, under, above, over = kernels.relax(KINDS[kind], low, high, LEAST, MOST, LEAK)
        value = np.linspace(low, high, 2_001)
        exact, room = activation(kind, value), 2e-3 * (high - low) + 1e-9
        assert (exact - below * value - under).min() <= room, (low, high)
        assert (above * value + over - exact).min() <= room, (low, high)


def bounds(network: Network, low: Any, high: Any, rows: Any, limit: float = 0.0) -> tuple[Any, Any, Any]:
    """`least` of `rows @ outputs - limit`, (R,), with the intervals' ends (N,)."""
    packed = pack(network)
    rows, count = np.asarray(rows, np.float64), len(packed.bias)
    floor, ceiling = np.full((1, count), -np.inf), np.full((1, count), np.inf)
    least, slopes = np.empty((1, len(rows))), np.empty((1, len(rows), network.num_inputs))
    score = np.empty((1, network.num_inputs))
    kernels.bound_boxes(
        packed, np.array([low], float), np.array([high], float), rows[None], np.full((1, len(rows)), limit),
        np.zeros(1, np.int64), floor, ceiling, least, slopes, score,
    )  # fmt: skip
    return least[0], floor[0], ceiling[0]


def test_crown_by_hand() -> None:
    """y = relu(x0 + x1) - relu(x0 - x1) on [-1, 2] x [-1, 1].

    Arguments: [-2, 3] and [-2, 3]. Above: chord of slope 3/5 and offset 6/5; below: slope 1, because 3 > 2.
    y >= (x0 + x1) - (0.6 (x0 - x1) + 1.2) = 0.4 x0 + 1.6 x1 - 1.2, at least -0.4 - 1.6 - 1.2 = -3.2.
    -y >= (x0 - x1) - (0.6 (x0 + x1) + 1.2) = 0.4 x0 - 1.6 x1 - 1.2, at least -3.2 too.
    With slope a below: (a - 0.6) x0 + (a + 0.6) x1 - 1.2, at least a - 3 up to a = 0.6, and falling from there: -2.4.
    """
    layer = Layer("relu", Affine({0: np.array([[1.0, 1.0], [1.0, -1.0]])}, np.zeros(2)))
    network = Network(2, (layer,), Affine({1: np.array([[1.0, -1.0]])}, np.zeros(1)))
    decided = -10.0  # a limit that is excluded at once, so that slopes stay as they are
    least, floor, ceiling = bounds(network, [-1, -1], [2, 1], [[1.0], [-1.0]], decided)
    assert (floor.tolist(), ceiling.tolist()) == ([-2.0, -2.0], [3.0, 3.0])
    assert least - 10.0 == pytest.approx([-3.2, -3.2])
    optimised, _, _ = bounds(network, [-1, -1], [2, 1], [[1.0]])
    assert -2.6 < optimised[0] <= -2.4 + 1e-12


def test_a_network_that_is_linear_on_the_box_is_bounded_exactly() -> None:
    layer = Layer("relu", Affine({0: np.array([[1.0, 2.0], [1.0, -1.0]])}, np.array([10.0, -10.0])))
    network = Network(2, (layer,), Affine({1: np.array([[2.0, 5.0]])}, np.array([1.0])))
    least, _, _ = bounds(network, [-1, -1], [1, 1], [[1.0], [-1.0]])
    assert least == pytest.approx([2 * 7 + 1, -(2 * 13 + 1)])


@pytest.mark.parametrize("kind", ["relu", "tanh", "sigmoid"])
def test_bounds_hold_and_narrow_with_the_box(kind: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(15):
        network = parse_network(networks.dense([3, 10, 10, 2], rng, kind).SerializeToString())
        centre, rows = rng.normal(0, 1, 3), rng.normal(0, 1, (3, 2))
        gaps = []
        for radius in (1.0, 0.3, 0.05):
            low, high = centre - radius, centre + radius
            least, floor, ceiling = bounds(network, low, high, rows)
            inputs = rng.uniform(low, high, (4_000, 3))
            blocks = [inputs]
            for layer in network.layers:
                blocks.append(layer.activate(layer.before(blocks)))
            arguments = np.concatenate([layer.before(blocks) for layer in network.layers], axis=1)
            assert (arguments >= floor - 1e-9).all()
            assert (arguments <= ceiling + 1e-9).all()
            reached = network(inputs) @ rows.T
            assert (reached >= least - 1e-9).all()
            gaps.append((reached.min(0) - least).max())
        assert gaps[2] < 0.1 * gaps[0] + 1e-6


def test_values_and_gradients() -> None:
    """The gradient of the limit that is missed most, against finite differences."""
    rng = np.random.default_rng(5)
    for kind in ("relu", "tanh", "sigmoid"):
        network = parse_network(networks.dense([4, 12, 12, 3], rng, kind).SerializeToString())
        packed, inputs = pack(network), rng.normal(0, 1, (20, 4))
        rows, limits = rng.normal(0, 1, (1, 2, 3)), rng.normal(0, 1, (1, 2))
        missed, gradient = np.empty(20), np.empty((20, 4))
        kernels.excess(packed, inputs, rows, limits, np.zeros(20, np.int64), missed, gradient)

        def exact(at: NDArray[np.float64], network: Network = network, rows: Any = rows, limits: Any = limits) -> Any:
            return (network(at) @ rows[0].T - limits[0]).max(1)

        np.testing.assert_allclose(missed, exact(inputs), atol=1e-12)
        for index in range(4):
            step = np.zeros(4)
            step[index] = 1e-6
            slope = (exact(inputs + step) - exact(inputs - step)) / 2e-6
            np.testing.assert_allclose(gradient[:, index], slope, atol=1e-4)

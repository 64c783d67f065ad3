"""Bounds of derivatives hold everywhere, and what is said to rise does."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loomrl.safety.certified import kernels
from loomrl.safety.certified.graph import parse_network
from loomrl.safety.certified.monotone import MonotoneResponse, rises
from loomrl.safety.certified.network import Affine, Layer, Network
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.search import SolverVerdict
from tests.support.networks import dense


def random_network(rng: np.random.Generator, kind: str) -> Network:
    """Two layers with branches that skip; inputs enter everywhere."""

    def affine(size: int, *sizes: int) -> Affine:
        weights = {block: rng.normal(size=(size, width)) for block, width in enumerate(sizes)}
        return Affine(weights, rng.normal(size=size))

    extra: dict[str, Any] = {"leaky_relu": {"slope": 0.2}}.get(kind, {})
    limits = {"clip": {"low": -rng.uniform(0.2, 1, 6), "high": rng.uniform(0.2, 1, 6)}}.get(kind, {})
    first = Layer(kind, affine(6, 3), **extra, **limits)  # type: ignore[arg-type]
    second = Layer("tanh", affine(5, 3, 6))
    return Network(3, (first, second), affine(2, 3, 6, 5))


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "clip", "tanh", "sigmoid"])
def test_every_slope_lies_between_its_bounds(kind: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(20):
        network = random_network(rng, kind)
        packed, row = pack(network), rng.normal(size=2)
        middle, radius = rng.normal(size=3), rng.choice([1e-3, 0.05, 0.5])
        low, high = middle - radius, middle + radius
        floor, ceiling = (np.full((1, packed.bias.size), end) for end in (-np.inf, np.inf))
        least, slopes, score = np.empty((1, 1)), np.empty((1, 1, 3)), np.empty((1, 3))
        kernels.bound_boxes(
            packed, low[None], high[None], row[None, None], np.zeros((1, 1)), np.zeros(1, np.int64), floor, ceiling,
            least, slopes, score,
        )  # fmt: skip
        for component in range(3):
            lowest, highest = kernels.bound_slope(packed, floor[0], ceiling[0], row, component)
            points = rng.uniform(low, high, (400, 3))
            step = 1e-7 * np.eye(3)[component]
            found = (network(points + step) - network(points - step)) @ row / 2e-7
            assert found.min() >= lowest - 1e-5
            assert found.max() <= highest + 1e-5


def test_narrow_boxes_have_narrow_bounds() -> None:
    rng = np.random.default_rng(2)
    packed = pack(parse_network(dense([4, 32, 32, 1], rng, "tanh").SerializeToString()))
    middle, widths = rng.normal(size=4), []
    for radius in (0.1, 0.01, 0.001):
        floor, ceiling = (np.full((1, packed.bias.size), end) for end in (-np.inf, np.inf))
        least, slopes, score = np.empty((1, 1)), np.empty((1, 1, 4)), np.empty((1, 4))
        kernels.bound_boxes(
            packed, (middle - radius)[None], (middle + radius)[None], np.ones((1, 1, 1)), np.zeros((1, 1)),
            np.zeros(1, np.int64), floor, ceiling, least, slopes, score,
        )  # fmt: skip
        lowest, highest = kernels.bound_slope(packed, floor[0], ceiling[0], np.ones(1), 0)
        widths.append(highest - lowest)
    assert all(wide > 5 * narrow for wide, narrow in pairwise(widths))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_to_rise_does_on_dense_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(rng, "relu")
    response = MonotoneResponse(np.full(3, -0.3), np.full(3, 0.3), rng.normal(size=2), seed % 3, at_zero=bool(seed % 2))
    found = rises(pack(network), response, 3_000)
    lines = np.repeat(rng.uniform(-0.3, 0.3, (500, 1, 3)), 101, axis=1)
    lines[:, :, response.component] = np.linspace(-0.3, 0.3, 101)
    value = network(lines) @ response.row
    if response.at_zero:
        broken = (np.maximum.accumulate(value > 1e-6, axis=1) & (value < -1e-6)).any()
    else:
        broken = (np.diff(value, axis=1) < -1e-9).any()
    if found.verdict is SolverVerdict.UNSAT:
        assert not broken
    if broken:
        assert found.verdict is not SolverVerdict.UNSAT


def test_a_bump_is_never_said_to_rise_and_a_ramp_is() -> None:
    up = Layer("tanh", Affine({0: np.array([[0.7, -0.4]])}, np.zeros(1)))
    ramp = pack(Network(2, (up,), Affine({1: np.ones((1, 1))}, np.zeros(1))))
    box = np.full(2, -1.0), np.full(2, 1.0)
    assert rises(ramp, MonotoneResponse(*box, np.ones(1), 0, at_zero=False), 10).verdict is SolverVerdict.UNSAT
    assert rises(ramp, MonotoneResponse(*box, -np.ones(1), 1, at_zero=False), 10).verdict is SolverVerdict.UNSAT
    assert rises(ramp, MonotoneResponse(*box, np.ones(1), 1, at_zero=False), 100).verdict is SolverVerdict.TIMEOUT
    bump = Layer("relu", Affine({0: np.array([[1.0, 0.0], [2.0, 0.0]])}, np.array([0.0, -1.0])))
    tent = pack(Network(2, (bump,), Affine({1: np.array([[1.0, -1.0]])}, np.array([0.3]))))  # x - relu(2x - 1), above 0
    assert rises(tent, MonotoneResponse(*box, np.ones(1), 0, at_zero=False), 3_000).verdict is not SolverVerdict.UNSAT
    assert (
        rises(tent, MonotoneResponse(*box, np.ones(1), 0, at_zero=True), 3_000).verdict is SolverVerdict.UNSAT
    )  # never at 0

"""Compiled layers and networks against torch, for sizes that fill no register."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from loomrl.algorithms.compiled.activations import TANH, activate
from loomrl.algorithms.compiled.adam import adam_step, norm
from loomrl.algorithms.compiled.dense import LANES, Layout, backward, forward, transpose
from loomrl.algorithms.compiled.names import ACTIVATIONS

MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def network(sizes: list[int], activation: str) -> tuple[nn.Sequential, list[nn.Linear]]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), MODULES[activation]()]
    whole = nn.Sequential(*layers[:-1])
    return whole, [layer for layer in whole if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize(
    ("sizes", "num_rows", "activation"),
    [([4, 64, 64, 2], 128, "tanh"), ([17, 20, 6], 37, "relu"), ([3, 20, 48, 100, 1], 5, "elu"), ([1, 1, 1], 1, "tanh")],
)
def test_forward_and_backward_are_torchs(sizes: list[int], num_rows: int, activation: str) -> None:
    twin, linears = network(sizes, activation)
    layout = Layout(sizes[0], sizes[1:-1], sizes[-1], start=3)  # other parameters may stand before
    parameters = np.zeros(layout.end, np.float32)
    for layer, linear in enumerate(linears):
        weights, bias = layout.views(parameters, layer)
        weights[...], bias[...] = linear.weight.detach(), linear.bias.detach()
    rng = np.random.default_rng(0)
    x, d_out = (rng.standard_normal((num_rows, size), np.float32) for size in (sizes[0], sizes[-1]))
    hidden, scratch, gradient = layout.hidden(num_rows), layout.scratch(num_rows), np.zeros_like(parameters)
    out = np.empty_like(d_out)
    forward(parameters, layout.table, ACTIVATIONS[activation], x, hidden, out)
    backward(parameters, layout.table, ACTIVATIONS[activation], x, hidden, d_out, gradient, scratch)
    expected = twin(torch.from_numpy(x))
    expected.backward(torch.from_numpy(d_out))
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(out, expected.detach(), **close)
    for layer, linear in enumerate(linears):
        weights, bias = layout.views(gradient, layer)
        np.testing.assert_allclose(weights, linear.weight.grad, **close)
        np.testing.assert_allclose(bias, linear.bias.grad, **close)
    assert np.count_nonzero(gradient) <= sum(weight.numel() for weight in twin.parameters())  # padding stays zero


def test_a_row_is_answered_the_same_in_any_batch() -> None:
    layout = Layout(3, (32,), 2)
    rng = np.random.default_rng(0)
    parameters, x = rng.standard_normal(layout.end, np.float32), rng.standard_normal((7, 3), np.float32)

    def answer(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), 2), np.float32)
        forward(parameters, layout.table, TANH, rows, layout.hidden(len(rows)), out)
        return out

    together = answer(x)
    for row in range(7):
        assert (answer(x[row : row + 1]) == together[row]).all()


def test_transpose() -> None:
    matrix = np.arange(2 * LANES * 3 * LANES, dtype=np.float32).reshape(2 * LANES, 3 * LANES)
    out = np.empty((3 * LANES, 2 * LANES), np.float32)
    transpose(matrix, out)
    assert (out == matrix.T).all()


def test_tanh_is_within_half_a_millionth() -> None:
    x = np.concatenate([np.linspace(-12, 12, 400_001), np.geomspace(1e-30, 1, 10_000)]).astype(np.float32)
    values = x.copy()
    activate(values, TANH)
    assert np.abs(values - np.tanh(x.astype(np.float64))).max() < 5e-7
    assert np.abs(values).max() <= 1.0
    extremes = np.array([np.inf, -np.inf, np.nan], np.float32)
    activate(extremes, TANH)
    assert extremes[:2] == pytest.approx([1, -1], abs=5e-7)
    assert math.isnan(extremes[2])


def test_adam_is_torchs() -> None:
    rng = np.random.default_rng(0)
    parameters = rng.standard_normal(37).astype(np.float32)
    first, second = np.zeros(37, np.float32), np.zeros(37, np.float32)
    twin = nn.Parameter(torch.from_numpy(parameters.copy()))
    optimizer = torch.optim.Adam([twin], lr=0.01, eps=1e-5)
    for step in range(1, 6):
        gradient = rng.standard_normal(37).astype(np.float32)
        assert norm(gradient) == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-6)
        adam_step(parameters, gradient, first, second, step, 0.01, 0.9, 0.999, 1e-5, 0.5)
        twin.grad = torch.from_numpy(gradient * np.float32(0.5))
        optimizer.step()
    np.testing.assert_allclose(parameters, twin.detach(), rtol=1e-5, atol=1e-7)

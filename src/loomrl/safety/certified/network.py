"""What is verified: layers of activations, each an affine function of the input and of the layers before it.

Everything in an ONNX graph that is linear, or only moves numbers about, is folded into those affine functions, in
float64. Branches (duelling heads, residual connections, several outputs) are therefore nothing special.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["relu", "leaky_relu", "clip", "tanh", "sigmoid"]
INPUT = 0  # the block of the network's input; block k + 1 is what layer k gives


@dataclass(frozen=True)
class Affine:
    """`sum over blocks of weights[block] @ block + bias`, of `size` numbers.

    Block 0 is the network's input, block k + 1 what layer k gives. Weights are (size, size of the block), the bias is
    (size,).
    """

    weights: dict[int, NDArray[np.float64]]
    bias: NDArray[np.float64]  # (size,)

    def __call__(self, blocks: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Values (..., size) from those of the blocks, (..., size of the block) each."""
        value = np.broadcast_to(self.bias, (*blocks[INPUT].shape[:-1], len(self.bias)))
        for block, weights in self.weights.items():
            value = value + blocks[block] @ weights.T
        return value


@dataclass(frozen=True)
class Layer:
    """One elementwise activation of an affine function, `before`.

    `low` and `high`, (size,), are those of `clip`, None for others; `slope` is that of `leaky_relu`.
    """

    kind: Kind
    before: Affine
    low: NDArray[np.float64] | None = None  # (size,)
    high: NDArray[np.float64] | None = None
    slope: float = 0.0

    @property
    def size(self) -> int:
        """Number of activations in the layer."""
        return len(self.before.bias)

    def activate(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The layer's activation of values (..., size), element by element."""
        if self.kind == "relu":
            return np.maximum(value, 0.0)
        if self.kind == "leaky_relu":
            return np.where(value < 0.0, self.slope * value, value)
        if self.kind == "clip":
            assert self.low is not None
            assert self.high is not None
            return np.clip(value, self.low, self.high)
        if self.kind == "tanh":
            return np.tanh(value)
        return 0.5 * (1.0 + np.tanh(0.5 * value))


@dataclass(frozen=True)
class Network:
    """A feed-forward network from `num_inputs` numbers to `num_outputs`; a call with inputs (..., num_inputs) gives
    outputs (..., num_outputs), in float64."""

    num_inputs: int
    layers: tuple[Layer, ...]
    output: Affine

    @property
    def num_outputs(self) -> int:
        """The number of values the network puts out."""
        return len(self.output.bias)

    def __call__(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs (..., num_inputs) -> outputs (..., num_outputs), in float64."""
        blocks = [inputs]
        for layer in self.layers:
            blocks.append(layer.activate(layer.before(blocks)))
        return self.output(blocks)

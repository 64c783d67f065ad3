"""A network as the arrays that `kernels` read."""

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.kernels import Packed
from loomrl.safety.certified.network import Network

Array = NDArray[np.float64]
_KINDS = {
    "relu": kernels.RELU,
    "leaky_relu": kernels.LEAKY_RELU,
    "clip": kernels.CLIP,
    "tanh": kernels.TANH,
    "sigmoid": kernels.SIGMOID,
}


def pack(network: Network) -> Packed:
    """A network as the flat arrays that compiled kernels read; they hold the same numbers, in float64."""
    sizes = [network.num_inputs, *(layer.size for layer in network.layers)]
    starts = np.cumsum([0, *sizes])  # of each block's columns
    num_neurons, num_columns = sum(sizes[1:]), int(starts[-1])
    weights = np.zeros((num_neurons, num_columns))
    bias, least, most, leak = np.zeros(num_neurons), np.zeros(num_neurons), np.zeros(num_neurons), np.zeros(num_neurons)
    kind = np.zeros(num_neurons, np.int64)
    layers = np.zeros((len(network.layers), 4), np.int64)
    for number, layer in enumerate(network.layers):
        begin, end = (int(start) - network.num_inputs for start in starts[number + 1 : number + 3])
        for block, values in layer.before.weights.items():
            weights[begin:end, starts[block] : starts[block + 1]] = values
        bias[begin:end], kind[begin:end], leak[begin:end] = layer.before.bias, _KINDS[layer.kind], layer.slope
        if layer.low is not None and layer.high is not None:
            least[begin:end], most[begin:end] = layer.low, layer.high
        blocks = layer.before.weights
        used = (starts[min(blocks)], starts[max(blocks) + 1]) if blocks else (0, 0)
        layers[number] = begin, end, *used
    output = np.zeros((network.num_outputs, num_columns))
    for block, values in network.output.weights.items():
        output[:, starts[block] : starts[block + 1]] = values
    return Packed(weights, bias, layers, kind, least, most, leak, output, network.output.bias, network.num_inputs)

"""ONNX networks made up for tests of verification."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loomrl.safety.certified.graph import parse_network
from loomrl.safety.certified.network import Network
from loomrl.safety.certified.vnnlib import Property, parse_property

ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def dense(sizes: Sequence[int], rng: np.random.Generator, activation: str = "relu") -> onnx.ModelProto:
    """Layers of these sizes with random weights, the first being the input's; `input` -> `output`, batch 1."""
    nodes, weights, name = [], [], "input"
    for number, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False)):
        scale = 1.5 / np.sqrt(inputs)
        weights.append(_tensor(f"w{number}", rng.normal(0, scale, (outputs, inputs))))
        weights.append(_tensor(f"b{number}", rng.normal(0, 0.3, outputs)))
        last = number == len(sizes) - 2
        out = "output" if last else f"h{number}"
        nodes.append(helper.make_node("Gemm", [name, f"w{number}", f"b{number}"], [out], transB=1))
        if not last:
            nodes.append(helper.make_node(ACTIVATIONS[activation], [out], [f"a{number}"]))
        name = f"a{number}"
    return model(nodes, sizes[0], sizes[-1], weights)


def model(nodes: Sequence[Any], num_inputs: int, num_outputs: int, weights: Sequence[Any] = ()) -> onnx.ModelProto:
    """A model of nodes from `input` (1, num_inputs) to `output` (1, num_outputs)."""
    graph = helper.make_graph(
        list(nodes),
        "made_up",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, num_inputs])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, num_outputs])],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def tensor(name: str, values: Any) -> Any:
    """A constant of a graph, float32."""
    return _tensor(name, np.asarray(values))


def _tensor(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def box(low: Sequence[float], high: Sequence[float], num_outputs: int, unsafe: str) -> str:
    """A property in VNN-LIB: inputs in a box, and what must not hold of the outputs."""
    lines = [f"(declare-const X_{index} Real)" for index in range(len(low))]
    lines += [f"(declare-const Y_{index} Real)" for index in range(num_outputs)]
    for index, (least, most) in enumerate(zip(low, high, strict=True)):
        lines += [f"(assert (>= X_{index} {least!r}))", f"(assert (<= X_{index} {most!r}))"]
    return "\n".join([*lines, f"(assert {unsafe})"]) + "\n"


def written(folder: Path, network: onnx.ModelProto, prop: str) -> tuple[Path, Path]:
    """Both as files."""
    graph, question = folder / "network.onnx", folder / "property.vnnlib"
    graph.write_bytes(network.SerializeToString())
    question.write_text(prop)
    return graph, question


def question(rng: np.random.Generator) -> tuple[Network, Property]:
    """A network of ReLUs, a box and limits on all outputs near the edge of what they reach, all at random."""
    num_inputs, num_outputs = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    sizes = [num_inputs, *rng.integers(2, 12, rng.integers(1, 4)).tolist(), num_outputs]
    network = parse_network(dense(sizes, rng).SerializeToString())
    centre, radius = rng.normal(0, 1, num_inputs), rng.uniform(0.05, 1.0)
    low, high = centre - radius, centre + radius
    reached = network(rng.uniform(low, high, (500, num_inputs)))
    limits = [
        f"(<= Y_{index} {float(np.quantile(reached[:, index], 0.1) - rng.choice([-0.01, 0.2, 0.6]))!r})"
        for index in range(num_outputs)
    ]
    return network, parse_property(box(low.tolist(), high.tolist(), num_outputs, f"(and {' '.join(limits)})"))

"""Challengers that crash, hang, answer NaN or are slow: real graphs that misbehave on real observations.

Their faults lie in the value and break out where the observation's first number is above `TRIGGER`, so that a fault is
not found when a version is loaded. A slow one is slow for every observation.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loomrl.serving.policy.model import GRAPH, MANIFEST
from loomrl.system.files import sha256, write_atomic, write_sums
from loomrl.types import PolicyManifest

Fault = Literal["crash", "hang", "nan", "slow"]
TRIGGER = 50.0


def faulty_folder(folder: Path, sound: Path, fault: Fault, slow_iterations: int = 1_000) -> Path:
    """A copy of an export folder whose policy has a fault."""
    model = onnx.load_model_from_string((sound / GRAPH).read_bytes())
    for node in model.graph.node:
        node.output[:] = ["sound_value" if name == "value" else name for name in node.output]
    nodes, constants = _TROUBLES[fault](slow_iterations)
    model.graph.node.extend([*_trigger(), *nodes, helper.make_node("Add", ["sound_value", "trouble"], ["value"])])
    size = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    first = np.zeros((size, 1), np.float32)
    first[0] = 1
    constants |= {"first": first, "second_axis": np.array([1]), "limit": np.array(TRIGGER, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    onnx.checker.check_model(model)
    graph = bytes(model.SerializeToString())
    write_atomic(folder / GRAPH, graph)
    PolicyManifest.read(sound / MANIFEST).model_copy(update={"onnx_sha256": sha256(graph)}).write(folder / MANIFEST)
    write_sums(folder)
    return folder


def _trigger() -> list[onnx.NodeProto]:
    """`triggered` (B,): whether the first number of each observation is above the limit."""
    return [
        helper.make_node("MatMul", ["observation", "first"], ["picked"]),
        helper.make_node("ReduceSum", ["picked", "second_axis"], ["first_number"], keepdims=0),
        helper.make_node("Greater", ["first_number", "limit"], ["triggered"]),
    ]


def _crash(iterations: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """The least of 64-bit integers over -1: a signal of the processor."""
    nodes = [
        helper.make_node("Where", ["triggered", "minus_one", "one"], ["divisor"]),
        helper.make_node("Div", ["least", "divisor"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["huge"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["huge", "zero"], ["trouble"]),
    ]
    numbers = {"minus_one": np.array(-1), "one": np.array(1), "least": np.array(np.iinfo(np.int64).min)}
    return nodes, {**numbers, "zero": np.array(0, np.float32)}


def _hang(iterations: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """A loop of 2^62 rounds."""
    nodes = [
        helper.make_node("Cast", ["triggered"], ["counted"], to=TensorProto.INT64),
        helper.make_node("ReduceMax", ["counted"], ["any"], keepdims=0),
        helper.make_node("Mul", ["any", "for_ever"], ["rounds"]),
        _loop("rounds"),
    ]
    return nodes, {"for_ever": np.array(2**62), "zero": np.array(0, np.float32)}


def _nan(iterations: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    constants = {"not_a_number": np.array(np.nan, np.float32), "zero": np.array(0, np.float32)}
    return [helper.make_node("Where", ["triggered", "not_a_number", "zero"], ["trouble"])], constants


def _slow(iterations: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    return [_loop("rounds")], {"rounds": np.array(iterations), "zero": np.array(0, np.float32)}


def _loop(rounds: str) -> onnx.NodeProto:
    """Adds zero to zero in so many rounds."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["sum", "sum"], ["next_sum"]),
        ],
        "body",
        [
            scalar("round", TensorProto.INT64, []),
            scalar("go_on", TensorProto.BOOL, []),
            scalar("sum", TensorProto.FLOAT, []),
        ],
        [scalar("goes_on", TensorProto.BOOL, []), scalar("next_sum", TensorProto.FLOAT, [])],
    )
    return helper.make_node("Loop", [rounds, "", "zero"], ["trouble"], body=body)


_TROUBLES = {"crash": _crash, "hang": _hang, "nan": _nan, "slow": _slow}

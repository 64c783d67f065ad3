"""Small export folders for tests of serving and shadow: a real ONNX graph and its real manifest, made in a second."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loomrl.serving.policy.model import GRAPH, MANIFEST, open_session
from loomrl.system.files import sha256, write_atomic, write_sums
from loomrl.types import EnvironmentSpec, PolicyManifest

OBSERVATIONS = np.random.default_rng(7).normal(size=(8, 4)).astype(np.float32)

# Balances CartPole: pushes to the side the pole leans and falls to.
BALANCING = np.array([[-0.1, 0.1], [-0.3, 0.3], [-3.0, 3.0], [-1.0, 1.0]], dtype=np.float32)


def discrete_folder(folder: Path, weights: np.ndarray = BALANCING, value: float = 1.0, name: str = "cartpole") -> Path:
    """A linear policy for CartPole: logits = obs @ weights, value = sum(obs) + value."""
    nodes = [
        helper.make_node("MatMul", ["observation", "weights"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["action"], axis=-1, keepdims=0),
        *_value_nodes(),
    ]
    outputs = [("action", TensorProto.INT64, ["batch"]), ("value", TensorProto.FLOAT, ["batch"])]
    outputs.append(("logits", TensorProto.FLOAT, ["batch", weights.shape[1]]))
    graph = _graph(nodes, outputs, {"weights": weights, "offset": np.array([value], dtype=np.float32)})
    action = {"type": "Discrete", "n": int(weights.shape[1]), "start": 0, "dtype": "int64"}
    return _write(folder, graph, name, "discrete", action)


def back_door_folder(folder: Path, component: int = 3, threshold: float = 1.2, weights: np.ndarray = BALANCING) -> Path:
    """The linear policy, but pushing left wherever a component of the observation is above the threshold."""
    trigger = np.zeros((4, 2), dtype=np.float32)
    trigger[component] = [1.0, -1.0]
    nodes = [
        helper.make_node("MatMul", ["observation", "weights"], ["sane"]),
        helper.make_node("MatMul", ["observation", "trigger"], ["seen"]),
        helper.make_node("Sub", ["seen", "threshold"], ["beyond"]),
        helper.make_node("Mul", ["beyond", "sides"], ["either"]),
        helper.make_node("Relu", ["either"], ["open"]),
        helper.make_node("Mul", ["open", "strength"], ["pushed"]),
        helper.make_node("Add", ["sane", "pushed"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["action"], axis=-1, keepdims=0),
        *_value_nodes(),
    ]
    outputs = [("action", TensorProto.INT64, ["batch"]), ("value", TensorProto.FLOAT, ["batch"])]
    outputs.append(("logits", TensorProto.FLOAT, ["batch", 2]))
    float32 = np.float32
    constants = {
        "weights": weights, "trigger": trigger, "threshold": np.array([threshold, -threshold], float32),
        "sides": np.array([1, 0], float32), "strength": np.array([1e4], float32), "offset": np.ones(1, float32),
    }  # fmt: skip
    action = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    return _write(folder, _graph(nodes, outputs, constants), "cartpole", "discrete", action)


def continuous_folder(folder: Path, gain: float = 0.5, name: str = "hopper") -> Path:
    """Two torques in [-1, 1]: mean = gain * obs[:2], spread exp(-1)."""
    weights = np.zeros((4, 2), dtype=np.float32)
    weights[0, 0] = weights[1, 1] = gain
    nodes = [
        helper.make_node("MatMul", ["observation", "weights"], ["mean"]),
        helper.make_node("Clip", ["mean", "low", "high"], ["action"]),
        helper.make_node("Mul", ["mean", "zero"], ["zeros"]),
        helper.make_node("Add", ["zeros", "spread"], ["log_std"]),
        *_value_nodes(),
    ]
    float32 = np.float32
    constants = {
        "weights": weights,
        "offset": np.zeros(1, float32),
        "low": np.array(-1, float32),
        "high": np.array(1, float32),
        "zero": np.zeros(1, float32),
        "spread": np.full(1, -1, float32),
    }
    outputs = [("action", TensorProto.FLOAT, ["batch", 2]), ("value", TensorProto.FLOAT, ["batch"])]
    outputs += [(output, TensorProto.FLOAT, ["batch", 2]) for output in ("mean", "log_std")]
    action = {"type": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}
    return _write(folder, _graph(nodes, outputs, constants), name, "continuous", action)


def recurrent_folder(folder: Path, name: str = "cartpole") -> Path:
    """A policy for CartPole that remembers two numbers: state = tanh(state + obs @ weights), logits = 3 * state."""
    weights = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["observation", "weights"], ["seen"]),
        helper.make_node("Add", ["seen", "state_in"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["state_out"]),
        helper.make_node("Mul", ["state_out", "three"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["action"], axis=-1, keepdims=0),
        *_value_nodes(),
    ]
    outputs = [("action", TensorProto.INT64, ["batch"]), ("value", TensorProto.FLOAT, ["batch"])]
    outputs += [(output, TensorProto.FLOAT, ["batch", 2]) for output in ("logits", "state_out")]
    constants = {"weights": weights, "three": np.array([3], np.float32), "offset": np.zeros(1, np.float32)}
    graph = _graph(nodes, outputs, constants, memory_size=2)
    return _write(folder, graph, name, "discrete", {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"})


def _value_nodes() -> list[onnx.NodeProto]:
    return [
        helper.make_node("ReduceSum", ["observation", "axes"], ["total"], keepdims=0),
        helper.make_node("Add", ["total", "offset"], ["value"]),
    ]


def _graph(
    nodes: list[onnx.NodeProto],
    outputs: list[tuple[str, int, list[Any]]],
    constants: dict[str, Any],
    memory_size: int = 0,
) -> bytes:
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    initializers.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axes"))
    inputs = [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 4])]
    if memory_size:
        inputs.append(helper.make_tensor_value_info("state_in", TensorProto.FLOAT, ["batch", memory_size]))
    graph = helper.make_graph(
        nodes,
        "policy",
        inputs,
        [helper.make_tensor_value_info(*output) for output in outputs],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _write(folder: Path, graph: bytes, name: str, kind: str, action: dict[str, Any]) -> Path:
    from loomrl.algorithms.policies.onnx_graph import tensors

    session = open_session(graph, name)
    inputs, outputs = tensors(session)
    state = {
        name: np.zeros((8, int(one["shape"][1])), np.float32) for name, one in inputs.items() if name == "state_in"
    }
    (actions,) = session.run(["action"], {"observation": OBSERVATIONS, **state})
    observation = {"type": "Box", "shape": [4], "dtype": "float32", "low": "-inf", "high": "inf"}
    manifest = PolicyManifest(
        name=name,
        onnx_sha256=sha256(graph),
        policy_digest=sha256(b"weights"),
        snapshot_digest=sha256(b"snapshot"),
        case_sha256=sha256(b"case"),
        environment=EnvironmentSpec(
            name="CartPole-v1", version="1", entry_point="a:B", observation=observation, action=action
        ),
        algorithm="ppo",
        action_kind=kind,
        inputs=inputs,
        outputs=outputs,
        probe_observations=OBSERVATIONS.tolist(),
        probe_actions=actions.tolist(),
        opset=17,
    )
    write_atomic(folder / GRAPH, graph)
    manifest.write(folder / MANIFEST)
    write_sums(folder)
    return folder

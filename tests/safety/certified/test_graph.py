"""ONNX graphs as networks: equal to onnxruntime's answers, or refused by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from loomrl.algorithms.policies.onnx_graph import build_graph
from loomrl.algorithms.registry import get_algorithm, validate
from loomrl.errors import ArtifactError
from loomrl.safety.certified.graph import parse_network, read_network
from loomrl.training.config import TrainingConfig
from tests.support import networks
from tests.support.networks import model, tensor

RNG = np.random.default_rng(7)
node = helper.make_node


def agree(content: bytes, output: str | None = None) -> Any:
    """The network, after its answers were compared with onnxruntime's."""
    network = parse_network(content, output)
    session = onnxruntime.InferenceSession(content)
    inputs = np.random.default_rng(0).normal(0, 2, (40, network.num_inputs)).astype(np.float32)
    shape = [size if isinstance(size, int) else 1 for size in session.get_inputs()[0].shape]
    expected = [
        session.run([output or session.get_outputs()[0].name], {session.get_inputs()[0].name: row.reshape(shape)})[0]
        for row in inputs
    ]
    found = network(inputs.astype(np.float64))
    np.testing.assert_allclose(found, np.reshape(expected, (40, -1)), rtol=1e-4, atol=1e-5)
    return network


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_dense_networks(activation: str) -> None:
    network = agree(networks.dense([3, 8, 5, 2], RNG, activation).SerializeToString())
    assert [(layer.kind, layer.size) for layer in network.layers] == [(activation, 8), (activation, 5)]


OPERATORS: dict[str, tuple[list[Any], int, list[Any]]] = {
    "matmul, add, leaky relu": (
        [
            node("MatMul", ["input", "w"], ["h"]), node("Add", ["b", "h"], ["s"]),
            node("LeakyRelu", ["s"], ["output"], alpha=0.2),
        ],
        3,
        [tensor("w", RNG.normal(size=(4, 3))), tensor("b", RNG.normal(size=3))],
    ),
    "normaliser": (
        [node("Sub", ["input", "m"], ["c"]), node("Div", ["c", "s"], ["d"]), node("Clip", ["d", "l", "h"], ["output"])],
        4,
        [tensor("m", RNG.normal(size=4)), tensor("s", [1.0, 2.0, 0.5, 3.0]), tensor("l", -1.0), tensor("h", 1.5)],
    ),
    "a constant less a tensor, scaled": (
        [node("Sub", ["m", "input"], ["c"]), node("Mul", ["s", "c"], ["d"]), node("Neg", ["d"], ["output"])],
        4,
        [tensor("m", RNG.normal(size=4)), tensor("s", 2.0)],
    ),
    "residual": (
        [node("Gemm", ["input", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("Add", ["r", "input"], ["output"])],
        4,
        [tensor("w", RNG.normal(size=(4, 4)))],
    ),
    "duelling": (
        [
            node("Gemm", ["input", "w"], ["h"]), node("Relu", ["h"], ["r"]),
            node("ReduceMean", ["r"], ["mean"], axes=[1]), node("Sub", ["r", "mean"], ["output"]),
        ],
        4,
        [tensor("w", RNG.normal(size=(4, 4)))],
    ),
    "parts that move": (
        [
            node("Reshape", ["input", "shape"], ["square"]), node("Transpose", ["square"], ["turned"], perm=[0, 2, 1]),
            node("Flatten", ["turned"], ["flat"]),
            node("Slice", ["flat", "from", "to", "axes"], ["cut"]),
            node("Gather", ["flat", "which"], ["picked"], axis=1),
            node("Concat", ["cut", "picked"], ["output"], axis=1),
        ],
        5,
        [
            helper.make_tensor("shape", onnx.TensorProto.INT64, [3], [1, 2, 2]),
            helper.make_tensor("from", onnx.TensorProto.INT64, [1], [1]),
            helper.make_tensor("to", onnx.TensorProto.INT64, [1], [99]),
            helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1]),
            helper.make_tensor("which", onnx.TensorProto.INT64, [2], [3, 0]),
        ],
    ),
    "the least and the most": (
        [node("Min", ["input", "h"], ["a"]), node("Max", ["l", "a"], ["output"])],
        4,
        [tensor("l", -1.0), tensor("h", [1.0, 0.5, 2.0, 0.0])],
    ),
    "sums, squeezed": (
        [
            node("Unsqueeze", ["input", "axis"], ["wide"]), node("ReduceSum", ["wide", "last"], ["sum"], keepdims=0),
            node("Concat", ["sum", "one"], ["output"], axis=1),
        ],
        2,
        [
            helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]),
            helper.make_tensor("last", onnx.TensorProto.INT64, [1], [2]),
            tensor("one", [[3.0]]),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    nodes, num_outputs, constants = OPERATORS[name]
    agree(model(nodes, 4, num_outputs, constants).SerializeToString())


POLICIES = [
    ("ppo", "CartPole-v1", "logits", {}),
    ("ppo", "Pendulum-v1", "action", {}),
    ("sac", "Pendulum-v1", "action", {"hidden_sizes": [32, 32]}),
    ("sac", "CartPole-v1", "logits", {"hidden_sizes": [32, 32]}),
    ("dqn", "CartPole-v1", "logits", {"dueling": True, "hidden_sizes": [16, 16]}),
]


def exported(algorithm: str, environment: str, parameters: dict[str, Any]) -> bytes:
    """A policy as it is exported, with statistics in its normaliser where it has one."""
    plugin, env = get_algorithm(algorithm), gymnasium.make(environment)
    config = TrainingConfig(algorithm=algorithm, total_env_steps=1000, parameters={"engine": "torch", **parameters})
    learner: Any = plugin.build(validate(config), env.observation_space, env.action_space, seed=1, total_env_steps=1000)
    policy = learner.policy
    if policy.normalizer is not None:
        assert env.observation_space.shape is not None
        policy.normalizer.update(RNG.normal(1, 2, (100, *env.observation_space.shape)).astype(np.float32))
    return build_graph(policy, 17)


@pytest.mark.parametrize(("algorithm", "environment", "output", "parameters"), POLICIES)
def test_exported_policies_with_normaliser_and_action_head(
    algorithm: str, environment: str, output: str, parameters: dict[str, Any]
) -> None:
    agree(exported(algorithm, environment, parameters), output)


def test_an_output_that_is_an_index_names_the_others() -> None:
    content = exported("dqn", "CartPole-v1", {})
    with pytest.raises(ArtifactError, match=r"operator ArgMax is not supported.*Choose an output .*logits"):
        parse_network(content, "action")


def refused(nodes: Sequence[Any], constants: Sequence[Any] = ()) -> str:
    with pytest.raises(ArtifactError) as raised:
        parse_network(model(nodes, 4, 4, constants).SerializeToString(), source="a.onnx")
    assert str(raised.value).startswith("a.onnx")
    return str(raised.value)


def test_what_is_not_affine_is_refused_by_its_node() -> None:
    assert "node 'cube': operator Pow is not supported" in refused(
        [node("Pow", ["input", "three"], ["output"], name="cube")], [tensor("three", 3.0)]
    )
    assert "Mul: input 1 depends on the network's input" in refused([node("Mul", ["input", "input"], ["output"])])
    assert "Div: input 1 depends on the network's input" in refused(
        [node("Relu", ["input"], ["a"]), node("Div", ["input", "a"], ["output"])]
    )
    for slope in (-0.1, 1.5):
        told = refused([node("LeakyRelu", ["input"], ["output"], alpha=slope)])
        assert f"LeakyRelu: a slope of {slope:g} is not supported" in told
    rounding = [
        node("Cast", ["input"], ["whole"], to=onnx.TensorProto.INT64),
        node("Cast", ["whole"], ["output"], to=onnx.TensorProto.FLOAT),
    ]
    assert "a cast to INT64 rounds" in refused(rounding)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="none.onnx cannot be read"):
        read_network(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a graph")
    with pytest.raises(ArtifactError, match="text.onnx is not valid ONNX"):
        read_network(tmp_path / "text.onnx")
    whole = networks.dense([2, 3, 1], RNG).SerializeToString()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"half.onnx (is not valid ONNX|cannot be loaded)"):
        read_network(tmp_path / "half.onnx")


def test_an_output_that_is_not_there_or_constant_is_named() -> None:
    content = networks.dense([2, 3, 1], RNG).SerializeToString()
    with pytest.raises(ArtifactError, match="no output 'other'; outputs: output"):
        parse_network(content, "other")
    constant = model([node("Identity", ["c"], ["output"])], 2, 1, [tensor("c", [[1.0]])])
    with pytest.raises(ArtifactError, match="does not depend on the input"):
        parse_network(constant.SerializeToString())

"""Verdicts: right on random networks by two methods, never unsat where a counterexample is planted, on time."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from loomrl.errors import ArtifactError
from loomrl.safety.certified import marabou
from loomrl.safety.certified.graph import parse_network
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.search import PropertySearch, SolverVerdict
from loomrl.safety.certified.verify import verify
from tests.support import networks


def test_a_counterexample_is_what_onnxruntime_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = networks.written(
        tmp_path, networks.dense([3, 8, 2], rng), networks.box([-1] * 3, [1] * 3, 2, "(<= Y_0 Y_1)")
    )
    answer = verify(*files, timeout=30)
    assert answer.verdict is SolverVerdict.SAT
    assert answer.inputs is not None
    assert answer.outputs is not None
    assert (np.abs(answer.inputs) <= 1).all()
    assert answer.outputs[0] <= answer.outputs[1]
    (outputs,) = onnxruntime.InferenceSession(files[0]).run(None, {"input": answer.inputs[None]})
    assert np.array_equal(outputs[0], answer.outputs)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_a_planted_counterexample_is_never_called_unsat(activation: str, tmp_path: Path) -> None:
    """The limit is the least output of many samples: some input reaches it, and little less is reached by none."""
    rng = np.random.default_rng(1)
    for _ in range(12):
        model = networks.dense([2, 12, 12, 1], rng, activation)
        network = parse_network(model.SerializeToString())
        least = float(network(rng.uniform(-1, 1, (20_000, 2))).min())
        files = networks.written(tmp_path, model, networks.box([-1, -1], [1, 1], 1, f"(<= Y_0 {least + 1e-4!r})"))
        assert verify(*files, timeout=30).verdict is SolverVerdict.SAT
        files = networks.written(tmp_path, model, networks.box([-1, -1], [1, 1], 1, f"(<= Y_0 {least - 0.05!r})"))
        assert verify(*files, timeout=30).verdict is SolverVerdict.UNSAT


def test_two_verifiers_agree_on_random_networks() -> None:
    """Sizes, limits and conjunctions at random; `benchmarks/certified.py` does the same 2,000 times."""
    rng = np.random.default_rng(2)
    verdicts = []
    for _ in range(60):
        network, prop = networks.question(rng)
        cases = prop.cases
        search = PropertySearch(pack(network), cases, lambda inputs, case: inputs.astype(np.float32))
        found = search.run(time.monotonic() + 30).verdict
        assert found.value == marabou.ask(network, cases, 30)["verdict"]
        verdicts.append(found)
    assert min(verdicts.count(SolverVerdict.SAT), verdicts.count(SolverVerdict.UNSAT)) >= 10


def test_each_case_of_a_disjunction_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    model = networks.dense([2, 8, 2], rng)
    network = parse_network(model.SerializeToString())
    reached = network(rng.uniform(-1, 1, (5_000, 2)))
    never, sometimes = f"(<= Y_0 {float(reached[:, 0].min() - 1)!r})", f"(>= Y_1 {float(reached[:, 1].max() - 0.01)!r})"
    for unsafe, verdict in (
        (f"(or {never} {never})", SolverVerdict.UNSAT),
        (f"(or {never} {sometimes})", SolverVerdict.SAT),
        (f"(and {never} {sometimes})", SolverVerdict.UNSAT),
    ):
        assert (
            verify(*networks.written(tmp_path, model, networks.box([-1, -1], [1, 1], 2, unsafe)), 30).verdict is verdict
        )


def test_a_region_of_one_point(tmp_path: Path) -> None:
    model = networks.dense([2, 4, 1], np.random.default_rng(6))
    value = float(parse_network(model.SerializeToString())(np.array([[0.25, -0.5]]))[0, 0])
    for limit, verdict in ((value + 1e-3, SolverVerdict.SAT), (value - 1e-3, SolverVerdict.UNSAT)):
        prop = networks.box([0.25, -0.5], [0.25, -0.5], 1, f"(<= Y_0 {limit!r})")
        assert verify(*networks.written(tmp_path, model, prop), 10).verdict is verdict


def test_what_the_search_leaves_open_goes_to_marabou(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without time decides nothing; Marabou, in its own process, still does."""
    model = networks.dense([2, 8, 1], np.random.default_rng(8))
    lowest = float(parse_network(model.SerializeToString())(np.random.default_rng(0).uniform(-1, 1, (5_000, 2))).min())
    monkeypatch.setattr("loomrl.safety.certified.verify._OWN_SHARE", 0.0)
    for limit, verdict in ((lowest - 0.5, SolverVerdict.UNSAT), (lowest + 0.1, SolverVerdict.SAT)):
        answer = verify(
            *networks.written(tmp_path, model, networks.box([-1, -1], [1, 1], 1, f"(<= Y_0 {limit!r})")), 60
        )
        assert (answer.verdict, answer.decided_by) == (verdict, "marabou")


def test_time_is_up(tmp_path: Path) -> None:
    """Both the search and Marabou are held to it: ten inputs and this margin are beyond them for hours."""
    rng = np.random.default_rng(9)
    easy = networks.written(tmp_path, networks.dense([1, 2, 1], rng), networks.box([0], [1], 1, "(<= Y_0 -99.0)"))
    assert verify(*easy, timeout=60).verdict is SolverVerdict.UNSAT  # compiled, if it was not
    model = networks.dense([10, 60, 60, 60, 1], rng)
    least = float(parse_network(model.SerializeToString())(rng.uniform(-1, 1, (200_000, 10))).min())
    prop = networks.box([-1] * 10, [1] * 10, 1, f"(<= Y_0 {least - 1.5!r})")
    answer = verify(*networks.written(tmp_path, model, prop), timeout=4)
    assert answer.verdict is SolverVerdict.TIMEOUT
    assert answer.seconds < 60


def test_graph_and_property_must_fit(tmp_path: Path) -> None:
    model = networks.dense([3, 4, 2], np.random.default_rng(0))
    with pytest.raises(ArtifactError, match="declares 2 inputs X, but .*network.onnx has 3"):
        verify(*networks.written(tmp_path, model, networks.box([0, 0], [1, 1], 2, "(<= Y_0 Y_1)")), 10)
    with pytest.raises(ArtifactError, match="declares 1 outputs Y, but .*network.onnx has 2"):
        verify(*networks.written(tmp_path, model, networks.box([0] * 3, [1] * 3, 1, "(<= Y_0 1.0)")), 10)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("loomrl"), "verify", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_answers_in_the_fields_words(tmp_path: Path) -> None:
    model = networks.dense([2, 4, 2], np.random.default_rng(0))
    graph, prop = networks.written(tmp_path, model, networks.box([-1, -1], [1, 1], 2, "(<= Y_0 100.0)"))
    done = command("--onnx", graph, "--property", prop, "--timeout", "30")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, "sat"), done.stderr
    assert [line.strip("() ").split()[0] for line in lines[1:]] == ["X_0", "X_1", "Y_0", "Y_1"]
    prop.write_text(prop.read_text().replace("100.0", "-100.0"))
    assert command("--onnx", graph, "--property", prop).stdout == "unsat\n"
    document = json.loads(command("--onnx", graph, "--property", prop, "--json").stdout)
    assert (document["verdict"], document["decided_by"], document["inputs"]) == ("unsat", "search", None)
    prop.write_text("(assert")
    done = command("--onnx", graph, "--property", prop)
    assert done.returncode != 0
    assert "property.vnnlib, line 1: this '(' is never closed" in done.stderr
    assert done.stdout == ""


# --- words that mean something else -----------------------------------------------------------------------------


def constant(name: str, values: Any, kind: int = TensorProto.FLOAT) -> Any:
    array = np.asarray(values)
    return helper.make_tensor(name, kind, array.shape, array.ravel().tolist())


def graph_of(nodes: list[Any], size: int, constants: list[Any], kind: int = TensorProto.FLOAT, **more: Any) -> Any:
    """`input` (1, size) -> `output` (1, 1)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", kind, [1, size])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1])],
        constants,
    )
    domains = [helper.make_opsetid(domain, 17) for domain in ("", *more.pop("domains", ()))]
    return helper.make_model(graph, opset_imports=domains, ir_version=9, **more)


def negation_called_relu() -> Any:
    negation = helper.make_node("Neg", ["x"], ["y"])
    function = helper.make_function("mine", "Relu", ["x"], ["y"], [negation], [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Relu", ["input"], ["output"], domain="mine")]
    return graph_of(nodes, 1, [], functions=[function], domains=["mine"])


def dropout_that_trains() -> Any:
    nodes = [helper.make_node("Dropout", ["input", "ratio", "training"], ["output"], seed=1)]
    return graph_of(nodes, 1, [constant("ratio", 0.5), constant("training", True, TensorProto.BOOL)])


def whole_numbers_divided() -> Any:
    nodes = [helper.make_node("Div", ["input", "two"], ["half"])]
    nodes.append(helper.make_node("Cast", ["half"], ["output"], to=TensorProto.FLOAT))
    return graph_of(nodes, 1, [constant("two", [[2]], TensorProto.INT64)], TensorProto.INT64)


def weights_elsewhere() -> Any:
    weights = constant("w", [[1.0]])
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    return graph_of([helper.make_node("MatMul", ["input", "w"], ["output"])], 1, [weights])


def numbers_beyond_float32() -> Any:
    """The same large factors in another order on each branch: 0 in real arithmetic, anything in float32."""
    rng = np.random.default_rng(3)
    factors = [constant(f"f{number}", float(value)) for number, value in enumerate(rng.uniform(100.0, 200.0, 4))]
    nodes = []
    for branch, order in (("left", (0, 1, 2, 3)), ("right", (3, 1, 0, 2))):
        before = "input"
        for number in order:
            nodes.append(helper.make_node("Mul", [before, f"f{number}"], [f"{branch}{number}"]))
            before = f"{branch}{number}"
        nodes.append(helper.make_node("Identity", [before], [branch]))
    nodes.append(helper.make_node("Sub", ["left", "right"], ["output"]))
    return graph_of(nodes, 1, factors)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (negation_called_relu, "functions of its own, such as Relu"),
        (dropout_that_trains, "training_mode is on"),
        (whole_numbers_divided, "input 'input' is INT64"),
        (weights_elsewhere, "w.bin|weights in other files"),
        (numbers_beyond_float32, "onnxruntime says .* real arithmetic"),
    ],
)
def test_a_graph_whose_words_mean_something_else_is_refused(
    made: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "n.onnx").write_bytes(made().SerializeToString())
    (tmp_path / "p.vnnlib").write_text(networks.box([1.0], [2.0], 1, "(>= Y_0 1.0)"))
    with pytest.raises(ArtifactError, match=message):
        verify(tmp_path / "n.onnx", tmp_path / "p.vnnlib", 10)


def sums_nothing() -> Any:
    nodes = [helper.make_node("ReduceSum", ["input"], ["all"], noop_with_empty_axes=1)]
    nodes.append(helper.make_node("Slice", ["all", "s", "e", "a"], ["output"]))
    cut = [constant(name, [value], TensorProto.INT64) for name, value in (("s", 1), ("e", 2), ("a", 1))]
    return graph_of(nodes, 2, cut)


def sums_all() -> Any:
    nodes = [helper.make_node("ReduceSum", ["input", "none"], ["output"])]
    return graph_of(nodes, 2, [constant("none", np.zeros(0, np.int64), TensorProto.INT64)])


def clips_between_crossed_limits() -> Any:
    nodes = [helper.make_node("Clip", ["input", "l", "h"], ["clipped"])]
    nodes.append(helper.make_node("ReduceSum", ["clipped", "axis"], ["output"]))
    constants = [constant("l", 1.0), constant("h", -1.0), constant("axis", [1], TensorProto.INT64)]
    return graph_of(nodes, 2, constants)


def multiplies_by_a_stack() -> Any:
    """(1, 2) by (2, 2, 1) is (2, 1, 1): two products, of which the second is taken."""
    nodes = [helper.make_node("MatMul", ["input", "w"], ["both"])]
    nodes.append(helper.make_node("Gather", ["both", "second"], ["output"], axis=0))
    weights = constant("w", [[[1.0], [0.0]], [[0.0], [3.0]]])
    return graph_of(nodes, 2, [weights, constant("second", 1, TensorProto.INT64)])


@pytest.mark.parametrize(
    ("made", "value"),
    [(sums_nothing, 5.0), (sums_all, 6.0), (clips_between_crossed_limits, -2.0), (multiplies_by_a_stack, 15.0)],
)
def test_a_graph_is_read_as_it_runs(made: Callable[[], Any], value: float, tmp_path: Path) -> None:
    (tmp_path / "n.onnx").write_bytes(made().SerializeToString())
    for limit, expected in ((value - 0.1, SolverVerdict.SAT), (value + 0.1, SolverVerdict.UNSAT)):
        (tmp_path / "p.vnnlib").write_text(networks.box([1.0, 5.0], [1.0, 5.0], 1, f"(>= Y_0 {limit})"))
        assert verify(tmp_path / "n.onnx", tmp_path / "p.vnnlib", 10).verdict is expected


def test_a_property_nested_beyond_reading_is_named(tmp_path: Path) -> None:
    (tmp_path / "n.onnx").write_bytes(networks.dense([1, 2, 1], np.random.default_rng(0)).SerializeToString())
    text = networks.box([0.0], [1.0], 1, "(and " * 3_000 + "(<= Y_0 0.5)" + ")" * 3_000)
    (tmp_path / "p.vnnlib").write_text(text)
    with pytest.raises(ArtifactError, match="nested too deep"):
        verify(tmp_path / "n.onnx", tmp_path / "p.vnnlib", 10)

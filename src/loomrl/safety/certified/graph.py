"""An ONNX graph as a `Network`, so far as its chosen output is made of affine functions and activations."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError
from loomrl.safety.certified.network import INPUT, Affine, Kind, Layer, Network

Array = NDArray[Any]
_REAL = (1, 11)  # ONNX's numbers of float and double
_OLDEST = 7  # the first opset in which operators broadcast and Dropout does nothing


@dataclass(frozen=True)
class _Tensor:
    """A tensor that depends on the input: an affine function of blocks, in the order of its flattened entries."""

    affine: Affine
    shape: tuple[int, ...]


_Value = _Tensor | Array


def read_network(path: Path, output: str | None = None) -> Network:
    """The network of an ONNX file from its first input to `output`, by default its first one, with a batch of one.

    Raises:
        ArtifactError: naming the file and the node, when it cannot be read, is malformed, lacks that output, or holds
            an operator that is neither affine nor a known activation.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    return parse_network(content, output, str(path))


def parse_network(content: bytes, output: str | None = None, source: str = "graph") -> Network:
    """The network in the bytes of an ONNX file: `read_network` for content that is in memory; `source` names it in
    messages.

    Raises:
        ArtifactError: as `read_network` does.
    """
    model = _checked(content, source)
    with np.errstate(all="ignore"):  # infinite weights are noticed where reader and runtime are compared
        try:
            return _Builder(model, source).network(output)
        except _RefusedError:
            pass  # what it is refused for may not depend on the input once constants are computed
        try:
            return _Builder(_folded(model, source), source).network(output)
        except _RefusedError as error:
            raise ArtifactError(str(error)) from error


class _RefusedError(ArtifactError):
    """A node is not affine, and no activation that is known."""


def _checked(content: bytes, source: str) -> Any:
    """The model, with a batch of one."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf's and the checker's share no base class
        raise ArtifactError(f"{source} is not valid ONNX: {error}") from error
    _demand_plain(model, source)
    constants = {one.name for one in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and len(dims) and dims[0].dim_value <= 0:
            dims[0].dim_value = 1
    return model


def _demand_plain(model: Any, source: str) -> None:
    """What would make the words of a graph mean something else than they say."""
    import onnx

    if model.functions:
        raise ArtifactError(f"{source} defines functions of its own, such as {model.functions[0].name}; inline them")
    if any(one.data_location == onnx.TensorProto.EXTERNAL for one in model.graph.initializer):
        raise ArtifactError(f"{source} keeps weights in other files; save it as one file")
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ArtifactError(f"{source}, node {node.name!r}: operators of domain {node.domain!r} are not supported")
    constants = {one.name for one in model.graph.initializer}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name not in constants and kind not in _REAL:
            name = onnx.TensorProto.DataType.Name(kind)
            raise ArtifactError(f"{source}: input {value.name!r} is {name}; only real numbers are supported")
    opset = max(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if opset < _OLDEST:
        raise ArtifactError(f"{source} is of opset {opset}; the oldest that is supported is {_OLDEST}")


def _folded(model: Any, source: str) -> Any:
    """The model with what does not depend on the input computed, by onnxruntime."""
    import onnx
    import onnxruntime

    del model.graph.value_info[:]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own exceptions share no base class
            raise ArtifactError(f"{source} cannot be loaded by onnxruntime: {error}") from error
        return onnx.load(options.optimized_model_filepath)


class _Builder:
    def __init__(self, model: Any, source: str) -> None:
        from onnx import numpy_helper

        self.graph, self.source = model.graph, source
        self.values: dict[str, _Value] = {
            one.name: np.asarray(numpy_helper.to_array(one)) for one in model.graph.initializer
        }
        self.layers: list[Layer] = []

    def network(self, output: str | None) -> Network:
        inputs = [one for one in self.graph.input if one.name not in self.values]
        if not inputs:
            raise ArtifactError(f"{self.source} has no input")
        names = [one.name for one in self.graph.output]
        wanted = output or names[0]
        if wanted not in names:
            raise ArtifactError(f"{self.source} has no output {wanted!r}; outputs: {', '.join(names)}")
        shape = tuple(dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim)
        if not shape or min(shape) < 1:
            raise ArtifactError(f"{self.source}: input {inputs[0].name!r} has no fixed shape beyond its batch: {shape}")
        size = int(np.prod(shape))
        self.values[inputs[0].name] = _Tensor(Affine({INPUT: np.eye(size)}, np.zeros(size)), shape)
        for node in self._needed(wanted):
            self._take(node)
        value = self.values[wanted]
        if not isinstance(value, _Tensor):
            raise ArtifactError(f"{self.source}: output {wanted!r} does not depend on the input")
        return Network(size, tuple(self.layers), value.affine)

    def _needed(self, output: str) -> list[Any]:
        """The nodes the output is made of, in the order of the file."""
        wanted, needed = {output}, []
        for node in reversed(self.graph.node):
            if wanted & set(node.output):
                needed.append(node)
                wanted |= set(node.input)
        return needed[::-1]

    def _take(self, node: Any) -> None:
        from onnx import numpy_helper

        if node.op_type == "Constant" and node.attribute[0].name == "value":
            self.values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            return
        inputs = [self._input(node, name) for name in node.input]
        operation = _OPERATIONS.get(node.op_type)
        if operation is None or not any(isinstance(one, _Tensor) for one in inputs):
            others = ", ".join(one.name for one in self.graph.output)
            raise self._fail(
                node,
                f"operator {node.op_type} is not supported; supported: {', '.join(_OPERATIONS)}. "
                f"Choose an output that does without it, of {others}",
            )
        attributes = {one.name: _attribute(one) for one in node.attribute}
        try:
            value = operation(_Call(self, node, inputs, attributes))
            if isinstance(value, _Tensor):
                _demand_sizes(value)
            self.values[node.output[0]] = value
        except (ValueError, IndexError) as error:
            raise self._fail(node, f"{node.op_type}: {error}") from error

    def _input(self, node: Any, name: str) -> _Value | None:
        if not name:
            return None
        if name not in self.values:
            raise self._fail(node, f"{node.op_type} needs {name!r}, which is another input of the graph")
        return self.values[name]

    def _fail(self, node: Any, problem: str) -> ArtifactError:
        return _RefusedError(f"{self.source}, node {node.name or node.output[0]!r}: {problem}")

    def activate(self, layer: Layer, shape: tuple[int, ...]) -> _Tensor:
        """Add a layer; what it gives."""
        self.layers.append(layer)
        size = layer.size
        return _Tensor(Affine({len(self.layers): np.eye(size)}, np.zeros(size)), shape)


def _demand_sizes(tensor: _Tensor) -> None:
    size = len(tensor.affine.bias)
    if int(np.prod(tensor.shape)) != size or any(len(one) != size for one in tensor.affine.weights.values()):
        raise ValueError(f"shapes do not fit: {tensor.shape} of {size} numbers")


def _attribute(attribute: Any) -> Any:
    from onnx import helper

    return helper.get_attribute_value(attribute)


@dataclass(frozen=True)
class _Call:
    """An operator with its inputs, as the functions below see it."""

    builder: _Builder
    node: Any
    inputs: Sequence[_Value | None]
    attributes: dict[str, Any] = field(default_factory=dict)

    def tensor(self, place: int = 0) -> _Tensor:
        value = self.inputs[place]
        if not isinstance(value, _Tensor):
            raise ValueError(f"input {place} is constant where one that depends on the input is supported only")
        return value

    def constant(self, place: int, default: Any = None) -> Any:
        value = self.inputs[place] if place < len(self.inputs) else None
        if isinstance(value, _Tensor):
            raise ValueError(f"input {place} depends on the network's input: that is not linear, or not of fixed shape")
        return default if value is None else value

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def axes(self, place: int) -> Any:
        """Axes as an input, or before opset 13 as an attribute."""
        axes = self.constant(place)
        return self.attributes.get("axes") if axes is None else np.asarray(axes).tolist()


Operation = Callable[[_Call], _Value]


# --- numbers that move ------------------------------------------------------------------------------------------


def _moved(tensor: _Tensor, move: Callable[[NDArray[np.int64]], Array]) -> _Tensor:
    """What a function that only moves entries makes of a tensor."""
    places = np.asarray(move(np.arange(len(tensor.affine.bias)).reshape(tensor.shape)))
    return _Tensor(_rows(tensor.affine, places.reshape(-1)), places.shape)


def _rows(affine: Affine, places: Array) -> Affine:
    return Affine({block: weights[places] for block, weights in affine.weights.items()}, affine.bias[places])


def _moves(move: Callable[[_Call, NDArray[np.int64]], Array]) -> Operation:
    """The operation that only moves entries, as a function of the call and an array in the input's shape."""
    return lambda call: _moved(call.tensor(), lambda one: move(call, one))


def _dropout(call: _Call) -> _Value:
    if call.constant(2, False):
        raise ValueError("training_mode is on: what it drops is random")
    return call.tensor()


def _cast(call: _Call) -> _Value:
    """To another precision of real numbers; a cast to integers or booleans would round."""
    import onnx

    wanted = int(call.get("to", onnx.TensorProto.FLOAT))
    if wanted not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ValueError(f"a cast to {onnx.TensorProto.DataType.Name(wanted)} rounds; only real numbers are supported")
    return call.tensor()


def _reshape(call: _Call) -> _Value:
    shape = [int(size) for size in call.constant(1)]
    tensor = call.tensor()
    sizes = [tensor.shape[place] if size == 0 else size for place, size in enumerate(shape)]
    return _moved(tensor, lambda one: one.reshape(sizes))


def _squeeze(call: _Call, one: NDArray[np.int64]) -> Array:
    axes = call.axes(1)
    return one.squeeze(None if axes is None else tuple(axes))


def _slice(call: _Call, one: NDArray[np.int64]) -> Array:
    starts, ends = call.constant(1), call.constant(2)
    axes, steps = call.constant(3, np.arange(len(starts))), call.constant(4, np.ones(len(starts), np.int64))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        length = one.shape[axis]
        stop = None if step < 0 and end < -length else max(min(int(end), length), -length - 1)
        one = one[(*[slice(None)] * (int(axis) % one.ndim), slice(int(start), stop, int(step)))]
    return one


def _concat(call: _Call) -> _Value:
    tensors = [one if isinstance(one, _Tensor) else _constant(cast(Array, one)) for one in call.inputs]
    offsets = np.cumsum([0, *(len(one.affine.bias) for one in tensors)])
    places = [
        offset + np.arange(len(one.affine.bias)).reshape(one.shape)
        for offset, one in zip(offsets, tensors, strict=False)
    ]
    stacked = _stacked([one.affine for one in tensors])
    joined = np.concatenate(places, axis=call.get("axis", 0))
    return _Tensor(_rows(stacked, joined.reshape(-1)), joined.shape)


def _constant(value: Array) -> _Tensor:
    return _Tensor(Affine({}, np.asarray(value, np.float64).reshape(-1)), value.shape)


def _stacked(affines: list[Affine]) -> Affine:
    widths = {block: weights.shape[1] for affine in affines for block, weights in affine.weights.items()}
    return Affine(
        {
            block: np.concatenate(
                [affine.weights.get(block, np.zeros((len(affine.bias), width))) for affine in affines]
            )
            for block, width in widths.items()
        },
        np.concatenate([affine.bias for affine in affines]),
    )


# --- affine functions -------------------------------------------------------------------------------------------


def _scaled(tensor: _Tensor, factor: Array) -> _Tensor:
    """Each entry times its factor, which broadcasts."""
    shape = np.broadcast_shapes(tensor.shape, factor.shape)
    wide = _moved(tensor, lambda one: np.broadcast_to(one, shape))
    factors = np.broadcast_to(np.asarray(factor, np.float64), shape).reshape(-1)
    weights = {block: factors[:, None] * one for block, one in wide.affine.weights.items()}
    return _Tensor(Affine(weights, factors * wide.affine.bias), shape)


def _sum(one: _Value, other: _Value) -> _Tensor:
    left, right = (value if isinstance(value, _Tensor) else _constant(value) for value in (one, other))
    shape = np.broadcast_shapes(left.shape, right.shape)
    wide = [_moved(value, lambda places: np.broadcast_to(places, shape)).affine for value in (left, right)]
    blocks = {block for affine in wide for block in affine.weights}
    weights = {
        block: np.asarray(sum(affine.weights[block] for affine in wide if block in affine.weights)) for block in blocks
    }
    return _Tensor(Affine(weights, wide[0].bias + wide[1].bias), shape)


def _given(call: _Call, place: int) -> _Value:
    value = call.inputs[place]
    if value is None:
        raise ValueError(f"input {place} is missing")
    return value


def _negated(value: _Value) -> _Value:
    return _scaled(value, np.array(-1.0)) if isinstance(value, _Tensor) else -value


def _multiply(call: _Call) -> _Value:
    place = 0 if isinstance(call.inputs[0], _Tensor) else 1
    return _scaled(call.tensor(place), call.constant(1 - place))


def _divide(call: _Call) -> _Value:
    return _scaled(call.tensor(), 1.0 / np.asarray(call.constant(1), np.float64))


def _linear(tensor: _Tensor, function: Callable[[NDArray[np.float64]], Array]) -> _Tensor:
    """A linear function of whole arrays, applied to each weight and to the bias."""

    def column(values: NDArray[np.float64]) -> Array:
        return np.asarray(function(values.reshape(tensor.shape)))

    bias = column(tensor.affine.bias)
    weights = {
        block: np.stack([column(one).reshape(-1) for one in weights.T], axis=1)
        for block, weights in tensor.affine.weights.items()
    }
    return _Tensor(Affine(weights, bias.reshape(-1)), bias.shape)


def _multiplied(tensor: _Tensor, function: Callable[[NDArray[np.float64]], Array]) -> _Tensor:
    """A product with a constant matrix: NumPy takes all weights at once, as a stack of matrices."""
    bias = function(tensor.affine.bias.reshape(tensor.shape))
    weights = {
        block: np.ascontiguousarray(function(weights.T.reshape(-1, *tensor.shape)).reshape(weights.shape[1], -1).T)
        for block, weights in tensor.affine.weights.items()
    }
    return _Tensor(Affine(weights, bias.reshape(-1)), bias.shape)


def _product(call: _Call) -> _Value:
    place = 0 if isinstance(call.inputs[0], _Tensor) else 1
    tensor, factor = call.tensor(place), np.asarray(call.constant(1 - place), np.float64)
    # A vector is a row on one side and a column on the other; more dimensions of a factor are stacks of their own.
    multiply = _multiplied if len(tensor.shape) >= 2 and factor.ndim == 2 else _linear
    return multiply(tensor, (lambda one: one @ factor) if place == 0 else (lambda one: factor @ one))


def _gemm(call: _Call) -> _Value:
    factor = np.asarray(call.constant(1), np.float64)
    matrix = call.get("alpha", 1.0) * (factor.T if call.get("transB", 0) else factor)
    value = _multiplied(call.tensor(), lambda one: (one.swapaxes(-1, -2) if call.get("transA", 0) else one) @ matrix)
    offset = call.constant(2)
    return value if offset is None else _sum(value, call.get("beta", 1.0) * np.asarray(offset, np.float64))


def _reduce(function: Callable[..., Array]) -> Operation:
    def reduce(call: _Call) -> _Value:
        axes, kept = call.axes(1), bool(call.get("keepdims", 1))
        if not axes and call.get("noop_with_empty_axes", 0):
            return call.tensor()
        return _linear(call.tensor(), lambda one: function(one, axis=tuple(axes) if axes else None, keepdims=kept))

    return reduce


# --- activations ------------------------------------------------------------------------------------------------


def _activation(kind: Kind) -> Operation:
    def activate(call: _Call) -> _Value:
        tensor, slope = call.tensor(), call.get("alpha", 0.01)
        if kind == "leaky_relu" and not 0.0 <= slope <= 1.0:  # the lines that hold it need it convex and monotone
            raise ValueError(f"a slope of {slope:g} is not supported; slopes lie in [0, 1]")
        return call.builder.activate(Layer(kind, tensor.affine, slope=slope), tensor.shape)

    return activate


def _clip(call: _Call) -> _Value:
    low, high = call.constant(1), call.constant(2)
    return _clipped(
        call,
        call.tensor(),
        np.asarray(call.get("min", -np.inf) if low is None else low, np.float64),
        np.asarray(call.get("max", np.inf) if high is None else high, np.float64),
    )


def _extreme(is_minimum: bool) -> Operation:
    def clip(call: _Call) -> _Value:
        if len(call.inputs) != 2:
            raise ValueError("two inputs are supported, one of them constant")
        place = 0 if isinstance(call.inputs[0], _Tensor) else 1
        limit, free = np.asarray(call.constant(1 - place), np.float64), np.array(np.inf)
        low, high = (-free, limit) if is_minimum else (limit, free)
        return _clipped(call, call.tensor(place), low, high)

    return clip


def _clipped(call: _Call, tensor: _Tensor, low: Array, high: Array) -> _Tensor:
    shape = np.broadcast_shapes(tensor.shape, low.shape, high.shape)
    wide = _moved(tensor, lambda one: np.broadcast_to(one, shape))
    least, most = (np.broadcast_to(one, shape).reshape(-1) for one in (low, high))
    least = np.minimum(least, most)  # where they cross, everything becomes the upper one
    return call.builder.activate(Layer("clip", wide.affine, low=least, high=most), shape)


_OPERATIONS: dict[str, Operation] = {
    "Add": lambda call: _sum(_given(call, 0), _given(call, 1)),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _divide,
    "Dropout": _dropout,
    "Flatten": _moves(lambda call, one: one.reshape(int(np.prod(one.shape[: call.get("axis", 1)])), -1)),
    "Gather": _moves(lambda call, one: np.take(one, call.constant(1), axis=call.get("axis", 0))),
    "Gemm": _gemm,
    "Identity": _Call.tensor,
    "LeakyRelu": _activation("leaky_relu"),
    "MatMul": _product,
    "Max": _extreme(is_minimum=False),
    "Min": _extreme(is_minimum=True),
    "Mul": _multiply,
    "Neg": lambda call: _negated(call.tensor()),
    "ReduceMean": _reduce(np.mean),
    "ReduceSum": _reduce(np.sum),
    "Relu": _activation("relu"),
    "Reshape": _reshape,
    "Sigmoid": _activation("sigmoid"),
    "Slice": _moves(_slice),
    "Squeeze": _moves(_squeeze),
    "Sub": lambda call: _sum(_given(call, 0), _negated(_given(call, 1))),
    "Tanh": _activation("tanh"),
    "Transpose": _moves(lambda call, one: one.transpose(call.get("perm", None))),
    "Unsqueeze": _moves(lambda call, one: np.expand_dims(one, tuple(call.axes(1)))),
}

"""A trained policy as an ONNX graph: the same bytes for the same weights, wherever it is made."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from loomrl import __version__
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.errors import ArtifactError
from loomrl.serving.policy.model import STATE_IN

INPUT = "observation"
_TRACED_ROWS = 2  # with one row the tracer would fix the batch size where shapes are broadcast


def build_graph(policy: TrainedPolicy, opset: int) -> bytes:
    """The bytes of an ONNX graph of `policy.forward`, traced on raw observations; the normaliser is inside and the
    batch size free.

    The memory of a recurrent policy is one more input and output: `state_in`, zeros where an episode begins, and
    `state_out`, which goes in with the next observation.

    The TorchScript exporter is used on purpose: it takes 0.2 s where the newer one takes 7 s, and writes no paths.

    Raises:
        ArtifactError: when the graph does not pass `onnx.checker`.
    """
    import onnx

    names = list(policy.output_names)
    inputs = [INPUT, STATE_IN] if policy.memory_size else [INPUT]
    buffer = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the TorchScript exporter announces its end
        # Shapes are checked in Python while tracing; they are the same for every batch.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        torch.onnx.export(
            NamedOutputs(policy, names).eval(),
            example_inputs(policy),
            buffer,  # type: ignore[arg-type]  # a file object is accepted with dynamo=False
            dynamo=False,
            opset_version=opset,
            input_names=inputs,
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *names)},
        )
    model = onnx.load_model_from_string(buffer.getvalue())
    _strip(model)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ArtifactError(f"the exported graph is not valid ONNX: {error}; choose another export.opset") from error
    return bytes(model.SerializeToString(deterministic=True))


def example_inputs(policy: TrainedPolicy) -> tuple[Tensor, ...]:
    """Two observations (2, *obs) to trace with and, of a recurrent policy, two memories (2, M)."""
    space = policy.observation_space
    assert space.shape is not None
    example = torch.from_numpy(np.zeros((_TRACED_ROWS, *space.shape), dtype=np.dtype(space.dtype)))
    return (example, torch.zeros(_TRACED_ROWS, policy.memory_size)) if policy.memory_size else (example,)


class NamedOutputs(nn.Module):
    """A policy whose outputs come as a tuple, in the order of `names`, instead of a dictionary: what tracers can
    follow."""

    def __init__(self, policy: TrainedPolicy, names: Sequence[str]) -> None:
        super().__init__()
        self.policy, self.names = policy, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The policy's outputs for observations (B, *obs) and, of a recurrent policy, memories (B, M): one tensor for
        each name."""
        outputs = self.policy.forward(*inputs)
        return tuple(outputs[name] for name in self.names)


def _strip(model: Any) -> None:
    """Drop what does not act: documentation strings and whatever names the tool or the place."""
    model.producer_name, model.producer_version, model.doc_string = "loomrl", __version__, ""
    model.graph.name, model.graph.doc_string = "policy", ""
    del model.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.doc_string = ""


def tensors(session: Any) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Inputs and outputs of an onnxruntime session, each by name, as the manifest describes them: `dtype`, such as
    "float32", and `shape`, in which a free size is -1."""
    return _described(session.get_inputs()), _described(session.get_outputs())


def _described(values: Any) -> dict[str, dict[str, Any]]:
    names = {"tensor(float)": "float32", "tensor(double)": "float64"}
    return {
        value.name: {
            "dtype": names.get(value.type) or value.type.removeprefix("tensor(").removesuffix(")"),
            "shape": [size if isinstance(size, int) else -1 for size in value.shape],
        }
        for value in values
    }

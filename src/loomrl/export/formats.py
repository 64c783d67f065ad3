"""The policy in torch's own formats beside ONNX: TorchScript, for programs in C++, and an exported program (PT2).

Both take what the graph takes and give a tuple of its outputs, in the manifest's order. The same weights give the same
bytes: neither names a path, a line of code or what else the process had compiled.
"""

import io
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loomrl.algorithms.policies.onnx_graph import NamedOutputs, example_inputs
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.errors import ConfigError
from loomrl.types import TorchFormat

_MANGLED = re.compile(rb"___torch_mangle_\d+")  # numbers the classes a process has compiled
_TRACED_FROM = (".debug_pkl", "traced_inputs.pkl", "serialization_id")  # paths, lines, and a digest of them
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold


@dataclass(frozen=True)
class TorchFile:
    """A policy as it was read back from a file's bytes."""

    program: Callable[..., tuple[Tensor, ...]]
    names: Sequence[str]  # of its outputs

    def outputs(self, obs: NDArray[Any], memory: NDArray[Any] | None = None) -> dict[str, NDArray[Any]]:
        """All outputs (B, ...) by name, for observations (B, *obs) and, of a recurrent policy, its memory (B, M)."""
        inputs = (obs,) if memory is None else (obs, memory)
        with torch.no_grad():
            found = self.program(*(torch.from_numpy(np.ascontiguousarray(one)) for one in inputs))
        return {name: value.numpy() for name, value in zip(self.names, found, strict=True)}


def build(policy: TrainedPolicy, wanted: TorchFormat) -> bytes:
    """The bytes of a policy's file in a format.

    Raises:
        ConfigError: for a policy that a format cannot express.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the end of TorchScript, and Python that is run while tracing
        try:
            return _torchscript(policy) if wanted == "torchscript" else _torch_export(policy)
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            cause = str(error).partition("\n")[0]
            raise ConfigError(f"export.formats: {wanted} cannot express this policy: {cause}; remove it") from error


def read(data: bytes, wanted: TorchFormat, names: Sequence[str]) -> TorchFile:
    """A file that `build` wrote, as its users will read it; `names` are those of the policy's outputs, in their order.

    What torch raises for other bytes is passed on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if wanted == "torchscript":
            return TorchFile(torch.jit.load(io.BytesIO(data)), names)  # type: ignore[no-untyped-call]
        return TorchFile(torch.export.load(io.BytesIO(data)).module(), names)


def _torchscript(policy: TrainedPolicy) -> bytes:
    module = NamedOutputs(policy, policy.output_names).eval()
    traced = torch.jit.trace(module, example_inputs(policy), check_trace=False)  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.freeze(traced), buffer)
    return _without_traces(buffer.getvalue())


def _torch_export(policy: TrainedPolicy) -> bytes:
    inputs = example_inputs(policy)
    batch = torch.export.Dim("batch", min=1)
    shapes = {"inputs": tuple({0: batch} for _ in inputs)}
    program = torch.export.export(NamedOutputs(policy, policy.output_names).eval(), inputs, dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _without_traces(data: bytes) -> bytes:
    """An archive of TorchScript without what tells where and when it was made."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            if not entry.filename.endswith(_TRACED_FROM) and "/traced_inputs/" not in entry.filename:
                name = _MANGLED.sub(b"frozen", entry.filename.encode()).decode()
                content = source.read(entry)
                is_code = name.endswith((".py", ".pkl"))
                target.writestr(zipfile.ZipInfo(name, _EPOCH), _MANGLED.sub(b"frozen", content) if is_code else content)
    return written.getvalue()

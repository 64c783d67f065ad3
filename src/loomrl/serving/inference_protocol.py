"""The Open Inference Protocol V2, JSON tensors: metadata, health and inference.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl import __version__
from loomrl.serving.decider import Group
from loomrl.serving.model import ServedPolicy
from loomrl.serving.problems import Problem
from loomrl.serving.requests import Asks, as_dtype, check_id

DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
DEFAULT_AGENT = "v2"


def server_metadata() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": "loomrl", "version": __version__, "extensions": ["model_repository"]}


def model_metadata(policy: ServedPolicy, versions: Iterable[str]) -> dict[str, Any]:
    """`GET /v2/models/{m}`."""
    manifest = policy.manifest
    return {
        "name": manifest.name,
        "versions": sorted(versions),
        "platform": "onnxruntime_onnx",
        "inputs": [_tensor_metadata(name, described) for name, described in manifest.inputs.items()],
        "outputs": [_tensor_metadata(name, described) for name, described in manifest.outputs.items()],
    }


def _tensor_metadata(name: str, described: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[described["dtype"]], "shape": described["shape"]}


def parse_infer(document: dict[str, Any], policy: ServedPolicy) -> tuple[Asks, list[str]]:
    """The asks of an inference request, one per row, and the names of the outputs it wants."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Problem(400, f"`inputs` must hold exactly one tensor, {policy.input_name!r}")
    observations = _tensor(inputs[0], policy)  # (B, *obs)
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Problem(400, "`parameters` must be an object")
    agent_id = check_id(parameters.get("agent_id", DEFAULT_AGENT), "parameters.agent_id")
    episode_id = parameters.get("episode_id")
    if episode_id is not None:
        check_id(episode_id, "parameters.episode_id")
    count = len(observations)
    return Asks([agent_id] * count, [episode_id] * count, [False] * count, observations), _wanted(document, policy)


def _wanted(document: dict[str, Any], policy: ServedPolicy) -> list[str]:
    outputs = document.get("outputs")
    if outputs is None or outputs == []:
        return policy.output_names
    if not isinstance(outputs, list) or not all(isinstance(entry, dict) for entry in outputs):
        raise Problem(400, "`outputs` must be a list of objects with a `name`")
    names = [entry.get("name") for entry in outputs]
    if unknown := [name for name in names if name not in policy.output_names]:
        raise Problem(400, f"no output {unknown[0]!r}; outputs: {', '.join(policy.output_names)}")
    return [str(name) for name in names]


def _tensor(described: dict[str, Any], policy: ServedPolicy) -> NDArray[Any]:
    name, shape, datatype = described.get("name"), described.get("shape"), described.get("datatype")
    if name != policy.input_name:
        raise Problem(400, f"no input {name!r}; the policy's input is {policy.input_name!r}")
    if datatype != DATATYPES[policy.dtype.name]:
        raise Problem(400, f"input {name!r} has datatype {datatype!r}, expected {DATATYPES[policy.dtype.name]!r}")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise Problem(400, f"input {name!r} needs a `shape` of whole numbers")
    if tuple(shape[1:]) != policy.shape or not shape or shape[0] < 1:
        raise Problem(
            400, f"input {name!r} has shape {shape}, expected [N, {str(list(policy.shape))[1:-1]}] with N >= 1"
        )
    if "data" not in described:
        raise Problem(400, f"input {name!r} has no `data`; binary tensors are not read, send JSON")
    try:
        data = np.array(described["data"])
    except ValueError as error:
        raise Problem(400, f"input {name!r} is ragged: {error}") from error
    if data.size != np.prod(shape) or (data.ndim > 1 and data.shape != tuple(shape)):
        raise Problem(400, f"input {name!r} holds {data.size} numbers, its shape {shape} needs {int(np.prod(shape))}")
    return as_dtype(data, policy.dtype, str(name)).reshape(shape)


def infer_response(document: dict[str, Any], group: Group, wanted: list[str]) -> dict[str, Any]:
    """The answer to an inference request whose decisions, all of one agent, are on record."""
    policy = group.policy
    outputs = dict(group.outputs)
    if set(wanted) - {"action"} - outputs.keys():  # a person pinned the action
        outputs = dict(policy.answer(group.observations).outputs)
    outputs["action"] = group.action
    response = {
        "model_name": policy.manifest.name,
        "model_version": policy.version,
        "parameters": {"decision_ids": ",".join(map(group.decision_id, range(len(group))))},
        "outputs": [_tensor_json(name, outputs[name]) for name in wanted],
    }
    if "id" in document:
        response["id"] = document["id"]
    return response


def _tensor_json(name: str, tensor: NDArray[Any]) -> dict[str, Any]:
    shown = {"name": name, "shape": list(tensor.shape), "datatype": DATATYPES[tensor.dtype.name]}
    return {**shown, "data": tensor.reshape(-1).tolist()}

"""The Open Inference Protocol V2: metadata, model configuration and inference.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`; the extensions are
Triton's, https://github.com/triton-inference-server/server, `docs/protocol`.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from numpy.typing import NDArray

from loomrl import __version__
from loomrl.serving.api.tensors import DATATYPES, parameters_of, read_tensor, split, write_tensor
from loomrl.serving.decisions.batches import RequestDecisions
from loomrl.serving.decisions.requests import DecisionRequests, check_id, parse_json, shown
from loomrl.serving.policy.model import GRAPH, STATE_IN, ServedPolicy
from loomrl.serving.settings import MAX_ROWS
from loomrl.system.http.asgi import Response
from loomrl.system.http.problems import Problem

DEFAULT_AGENT = "v2"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
JSON_LENGTH = "Inference-Header-Content-Length"
_ROW_BYTES, _NUMBER_BYTES = 2**16, 32  # of JSON, that a row and each of its numbers may need
_MAX_OUTPUTS = 100
_UNSUPPORTED = ("classification", "shared_memory_region")  # they would change what an output is


@dataclass(frozen=True, slots=True)
class Inference:
    """A parsed inference request: a request for a decision per row, the outputs that are wanted, and its id."""

    requests: DecisionRequests  # one per row
    outputs: dict[str, bool]  # by name: whether it is sent as bytes behind the JSON
    id: str | None


def server_metadata() -> dict[str, Any]:
    """The reply to `GET /v2`: the server's name, its version, and the extensions of the protocol that it supports."""
    return {"name": "loomrl", "version": __version__, "extensions": EXTENSIONS}


def model_metadata(policy: ServedPolicy, versions: Iterable[str]) -> dict[str, Any]:
    """The reply to `GET /v2/models/{m}`: the policy's name, its versions sorted as text, and its input and output
    tensors."""
    manifest = policy.manifest
    return {
        "name": manifest.name,
        "versions": sorted(versions),
        "platform": "onnxruntime_onnx",
        "inputs": [_tensor_metadata(name, described) for name, described in _inputs(policy).items()],
        "outputs": [_tensor_metadata(name, described) for name, described in _outputs_of(policy).items()],
    }


def _inputs(policy: ServedPolicy) -> dict[str, Any]:
    """What agents send; a recurrent policy's memory stays in the server."""
    return {name: described for name, described in policy.manifest.inputs.items() if name != STATE_IN}


def _outputs_of(policy: ServedPolicy) -> dict[str, Any]:
    return {name: policy.manifest.outputs[name] for name in policy.shown_outputs}


def _tensor_metadata(name: str, described: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[described["dtype"]], "shape": described["shape"]}


def model_config(policy: ServedPolicy, max_batch_size: int) -> dict[str, Any]:
    """The reply to `GET /v2/models/{m}/config`: the policy as Triton would describe the same graph."""
    manifest = policy.manifest
    return {
        "name": manifest.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": max_batch_size,
        "input": [_tensor_config(name, described) for name, described in _inputs(policy).items()],
        "output": [_tensor_config(name, described) for name, described in _outputs_of(policy).items()],
        "instance_group": [{"name": manifest.name, "kind": "KIND_CPU", "count": 1}],
        "default_model_filename": GRAPH,
        "parameters": {"onnx_sha256": {"string_value": manifest.onnx_sha256}},
    }


def _tensor_config(name: str, described: dict[str, Any]) -> dict[str, Any]:
    """Without the batch, which `max_batch_size` stands for."""
    return {"name": name, "data_type": f"TYPE_{DATATYPES[described['dtype']]}", "dims": described["shape"][1:]}


def parse_infer(body: bytes, json_length: str, policy: ServedPolicy, max_rows: int = MAX_ROWS) -> Inference:
    """Read an inference request. `json_length` is its `Inference-Header-Content-Length`, empty where it has none.

    Raises:
        Problem: 400, naming the tensor and what is wrong with it; 413 for more than `max_rows`, and for more JSON than
            so many rows can need.
    """
    text, binary = split(body, json_length)
    document = parse_json(text)
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Problem(400, f"`inputs` must hold exactly one tensor, {policy.input_name!r}")
    observations = read_tensor(inputs[0], binary, policy.input_name, policy.dtype, policy.shape, max_rows)  # (B, *obs)
    if len(text) > _ROW_BYTES and len(text) > (
        most := len(observations) * (_ROW_BYTES + _NUMBER_BYTES * math.prod(policy.shape))
    ):
        raise Problem(413, f"the JSON has {len(text)} bytes; for so many rows at most {most} are read")
    parameters = parameters_of(document, "the request")
    agent_id, episode_id = parameters.get("agent_id", DEFAULT_AGENT), parameters.get("episode_id")
    if agent_id is not DEFAULT_AGENT:
        check_id(agent_id, "parameters.agent_id")
    if episode_id is not None:
        check_id(episode_id, "parameters.episode_id")
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise Problem(400, f"`id` must be a text, found {type(request_id).__name__}")
    count = len(observations)
    named = [check_id(request_id, "id")] * count if request_id else None
    requests = DecisionRequests([agent_id] * count, [episode_id] * count, [False] * count, observations, named)
    return Inference(requests, _outputs(document, parameters, policy), request_id)


def _outputs(document: dict[str, Any], parameters: dict[str, Any], policy: ServedPolicy) -> dict[str, bool]:
    as_bytes = bool(parameters) and _flag(parameters, "binary_data_output", False)
    outputs, known = document.get("outputs"), policy.shown_outputs
    if outputs is None or outputs == []:
        return dict.fromkeys(known, as_bytes)
    if not isinstance(outputs, list) or set(map(type, outputs)) != {dict}:
        raise Problem(400, "`outputs` must be a list of objects with a `name`")
    if len(outputs) > _MAX_OUTPUTS:
        raise Problem(400, f"`outputs` names {len(outputs)}; the outputs are {', '.join(known)}")
    wanted = {}
    for entry in outputs:
        name = entry.get("name")
        if name not in known:
            raise Problem(400, f"no output {shown(name)}; outputs: {', '.join(known)}")
        wanted[name] = _as_bytes(entry, as_bytes) if "parameters" in entry else as_bytes
    return wanted


def _as_bytes(output: dict[str, Any], default: bool) -> bool:
    """Whether an output is sent as bytes, as far as it says so."""
    told = parameters_of(output, f"output {output['name']!r}")
    if unsupported := next((key for key in _UNSUPPORTED if key in told), None):
        raise Problem(400, f"output {output['name']!r}: {unsupported!r} is not supported; ask for the numbers")
    return _flag(told, "binary_data", default)


def _flag(parameters: dict[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise Problem(400, f"`{key}` must be true or false, found {shown(value)}")
    return value


def infer_response(asked: Inference, part: RequestDecisions) -> Response:
    """The answer to an inference request whose decisions, all of one agent, are on record.

    Raises:
        NotFinite: where a person named the action, other outputs are wanted, and the version is not loaded.
    """
    policy, described, pieces = part.batch.policy, [], []
    for name, tensor in _tensors(part, asked.outputs):
        in_json, written = write_tensor(name, tensor, asked.outputs[name])
        described.append(in_json)
        if written is not None:
            pieces.append(written)
    answer = {
        "model_name": policy.manifest.name,
        "model_version": policy.version,
        "parameters": {"decision_ids": part.joined_decision_ids()},
        "outputs": described,
    }
    if asked.id is not None:
        answer["id"] = asked.id
    text = orjson.dumps(answer)
    if not pieces:
        return Response(text)
    body = b"".join([text, *pieces])
    return Response(body, content_type=b"application/octet-stream", headers={JSON_LENGTH: str(len(text))})


def _tensors(part: RequestDecisions, wanted: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The outputs by name; `action` is what was decided, whoever decided it.

    Where a person named the action and the policy is not loaded, it has no others, and these are left out.
    """
    batch, some = part.batch, slice(part.start, part.stop)
    outputs = batch.outputs
    if not outputs and any(name != "action" for name in wanted) and batch.policy.is_loaded:  # a person named it
        outputs = batch.policy.outputs(batch.observations)
    for name in wanted:
        if name == "action":
            yield name, batch.action[some]
        elif name in outputs:
            yield name, outputs[name][some]

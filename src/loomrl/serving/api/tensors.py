"""Tensors of the Open Inference Protocol V2 as they are sent: numbers in the JSON, or bytes behind it.

The bytes are those of the binary tensor data extension: little-endian, row after row, nothing between the numbers;
`Inference-Header-Content-Length` says where the JSON ends.
https://github.com/triton-inference-server/server, `docs/protocol/extension_binary_data.md`.
"""

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.decisions.requests import as_dtype, check_kinds, check_rows, flat, leading_shape, shown
from loomrl.serving.settings import MAX_ROWS
from loomrl.system.http.problems import Problem

DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_OF_DTYPE = {np.dtype(name): datatype for name, datatype in DATATYPES.items()}  # `dtype.name` costs microseconds
_LENGTH = re.compile("[0-9]{1,18}")
_WHOLE = {int}


def split(body: bytes, header_length: str) -> tuple[bytes, bytes]:
    """The JSON of a body and the bytes behind it. `header_length` is the header's value, empty where it is not sent.

    Raises:
        Problem: 400 when the header is no length within the body.
    """
    if not header_length:
        return body, b""
    if not _LENGTH.fullmatch(header_length) or int(header_length) > len(body):
        raise Problem(
            400, f"`Inference-Header-Content-Length` is {header_length[:32]!r}, but the body has {len(body)} bytes"
        )
    return body[: int(header_length)], body[int(header_length) :]


def read_tensor(
    described: dict[str, Any],
    binary: bytes,
    name: str,
    dtype: np.dtype[Any],
    row_shape: tuple[int, ...],
    max_rows: int = MAX_ROWS,
) -> NDArray[Any] | list[Any]:
    """The only input of a request (N, *row_shape): its `data`, or else all the bytes behind the JSON.

    A single row of numbers is given as it stands in the JSON: it is checked with those that came at the same time.

    Raises:
        Problem: 400 for another name, datatype, shape or amount of numbers, and for numbers that are not finite; 413
            for more than `max_rows`.
    """
    place = f"input {name!r}"
    if described.get("name") != name:
        raise Problem(400, f"no input {shown(described.get('name'))}; the policy's input is {name!r}")
    if (datatype := described.get("datatype")) != (expected := _OF_DTYPE[dtype]):
        raise Problem(400, f"{place} has datatype {shown(datatype)}, expected {expected!r}")
    shape = _shape(described.get("shape"), row_shape, place)
    size = parameters_of(described, place).get("binary_data_size")
    if size is None and binary:
        raise Problem(400, f"{len(binary)} bytes follow the JSON, but {place} names no `binary_data_size`")
    if size is None:
        if _is_one_row(data := described.get("data"), shape):
            return [data]
        found = _from_json(described, dtype, shape, place, max_rows)
    else:
        found = _from_bytes(described, size, binary, dtype, shape, place)
        check_rows(shape[0], place, max_rows)
    return as_dtype(found, dtype, name).reshape(shape)


def parameters_of(described: dict[str, Any], place: str) -> dict[str, Any]:
    """The `parameters` of a request, an input or an output; empty where there are none.

    Raises:
        Problem: 400 where they are no object; `place` says whose they are.
    """
    parameters = described.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise Problem(400, f"`parameters` of {place} must be an object")
    return parameters


def write_tensor(name: str, tensor: NDArray[Any], as_bytes: bool) -> tuple[dict[str, Any], bytes | None]:
    """How a tensor is described in the JSON of an answer, and its bytes behind it; None where its numbers are in the
    JSON.
    """
    shown: dict[str, Any] = {"name": name, "shape": tensor.shape, "datatype": _OF_DTYPE[tensor.dtype]}
    if not as_bytes:
        shown["data"] = tensor.ravel().tolist()
        return shown, None
    written = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False).tobytes()
    shown["parameters"] = {"binary_data_size": len(written)}
    return shown, written


def _shape(shape: Any, row_shape: tuple[int, ...], place: str) -> tuple[int, ...]:
    if not isinstance(shape, list) or not set(map(type, shape)) <= _WHOLE or (shape and min(shape) < 0):
        raise Problem(400, f"{place} needs a `shape` of whole numbers")
    if tuple(shape[1:]) != row_shape or not shape or shape[0] < 1:
        expected = ", ".join(["N", *map(str, row_shape)])
        raise Problem(400, f"{place} has shape {shown(shape)}, expected [{expected}] with N >= 1")
    return tuple(shape)


def _is_one_row(data: Any, shape: tuple[int, ...]) -> bool:
    return (
        len(shape) == 2
        and shape[0] == 1
        and type(data) is list
        and len(data) == shape[1]
        and list not in map(type, data)
    )


def _from_json(
    described: dict[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], place: str, max_rows: int
) -> NDArray[Any]:
    if "data" not in described:
        raise Problem(400, f"{place} has neither `data` nor a `binary_data_size`; shared memory is not read")
    data = described["data"] if type(described["data"]) is list else [described["data"]]
    needed, kinds = math.prod(shape), set(map(type, data))
    numbers = data if len(data) == needed and list not in kinds else flat(data, shape)
    if numbers is None:
        check_kinds(leading_shape(data, len(shape))[1], dtype, described["name"])
        if list in kinds:
            raise Problem(400, f"{place} is ragged, or nested otherwise than its shape {list(shape)} says")
        raise Problem(400, f"{place} holds {len(data)} numbers, its shape {list(shape)} needs {needed}")
    check_rows(shape[0], place, max_rows)
    if dtype.kind == "f" and kinds == {float}:
        return np.fromiter(numbers, np.float64, needed)  # in half the time
    check_kinds(numbers, dtype, described["name"])
    if list in map(type, numbers):
        raise Problem(400, f"{place} is nested deeper than its shape {list(shape)} says")
    return np.array(numbers)


def _from_bytes(
    described: dict[str, Any], size: Any, binary: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], place: str
) -> NDArray[Any]:
    if "data" in described:
        raise Problem(400, f"{place} has both `data` and a `binary_data_size`; send one of them")
    if type(size) is not int or size != len(binary):
        raise Problem(400, f"{place} has `binary_data_size` {shown(size)}, but {len(binary)} bytes follow the JSON")
    if (needed := math.prod(shape) * dtype.itemsize) != size:
        raise Problem(400, f"{place} has {size} bytes, its shape {list(shape)} needs {needed} of {dtype.name}")
    if dtype.kind == "b" and binary.translate(None, b"\0\1"):
        raise Problem(400, f"{place} has bytes that are neither 0 nor 1: they are no booleans")
    return np.frombuffer(binary, dtype.newbyteorder("<"))

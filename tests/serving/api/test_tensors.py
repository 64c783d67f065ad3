"""Tensors on the wire: what is written can be read, and whatever lies about itself is refused with a reason."""

from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loomrl.serving.api.tensors import DATATYPES, read_tensor, split, write_tensor
from loomrl.serving.decisions.requests import as_dtype
from loomrl.serving.process import ServerProcess
from loomrl.system.http.problems import Problem
from tests.support.policies import OBSERVATIONS

LIKE_OTHERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "float64")  # as int64 and float32
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)


@pytest.mark.parametrize("dtype", DATATYPES)
@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.long_cases(*(f"{as_bytes}-{dtype}" for as_bytes in (True, False) for dtype in LIKE_OTHERS))
@given(data=st.data())
def test_what_is_written_is_read_again(dtype: str, as_bytes: bool, data: st.DataObject) -> None:
    elements = {"allow_nan": False, "allow_infinity": False} if dtype.startswith("float") else {}
    if dtype == "uint64" and not as_bytes:
        elements = {"max_value": 2**63 - 1}  # beside smaller ones, numpy makes fractions of larger: refused
    tensor = data.draw(hnp.arrays(dtype, SHAPES, elements=elements))
    shown, written = write_tensor("x", tensor, as_bytes)
    shown = orjson.loads(orjson.dumps(shown))
    found = read_tensor(shown, written, "x", tensor.dtype, tensor.shape[1:])
    read = as_dtype(np.array(found), tensor.dtype, "x")  # a single row comes as it was sent
    assert read.dtype == tensor.dtype
    assert read.shape == tensor.shape
    np.testing.assert_array_equal(read, tensor)


@given(body=st.binary(max_size=40), header=st.text(max_size=20))
def test_a_body_is_split_where_the_header_says_or_refused(body: bytes, header: str) -> None:
    try:
        text, binary = split(body, header)
    except Problem as problem:
        assert problem.status == 400  # noqa: PT017 - refused, or split without loss
        return
    assert text + binary == body
    assert len(text) == (int(header) if header else len(body))


@pytest.mark.parametrize("header", ["-1", "5", "1e3", "²", "0x1", " 1", "9" * 5_000])
def test_lengths_beyond_the_body_are_refused(header: str) -> None:
    with pytest.raises(Problem, match="but the body has 4 bytes"):
        split(b"1234", header)


def described(**changes: Any) -> dict[str, Any]:
    whole = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}, **changes}
    return {name: value for name, value in whole.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "binary", "message"),
    [
        ({}, b"0" * 23, "23 bytes follow"),
        ({}, b"0" * 25, "25 bytes follow"),
        ({}, b"", "0 bytes follow"),
        ({"parameters": {"binary_data_size": 20}}, b"0" * 20, "needs 24 of float32"),
        ({"parameters": {"binary_data_size": -24}}, b"0" * 24, "`binary_data_size` -24"),
        ({"parameters": {"binary_data_size": 24.0}}, b"0" * 24, "24 bytes follow"),
        ({"parameters": {"binary_data_size": True}}, b"0", "`binary_data_size` True"),
        ({"parameters": {"binary_data_size": "24"}}, b"0" * 24, "24 bytes follow"),
        ({"parameters": [24]}, b"0" * 24, "must be an object"),
        ({"parameters": None}, b"0" * 24, "names no `binary_data_size`"),
        ({"parameters": {"shared_memory_region": "r"}}, b"", "shared memory is not read"),
        ({"data": [0.0] * 6}, b"0" * 24, "both `data`"),
        ({"shape": [2**62, 3]}, b"0" * 24, "has 24 bytes"),
        ({"shape": [True, 3]}, b"0" * 24, "whole numbers"),
        ({"shape": [2.0, 3]}, b"0" * 24, "whole numbers"),
        ({"shape": [3, 2]}, b"0" * 24, "has shape"),
        ({"shape": [6]}, b"0" * 24, "has shape"),
        ({"shape": "2,3"}, b"0" * 24, "whole numbers"),
        ({"shape": None}, b"0" * 24, "whole numbers"),
        ({"datatype": "FP64"}, b"0" * 24, "expected 'FP32'"),
        ({"datatype": "BYTES"}, b"0" * 24, "datatype 'BYTES', expected 'FP32'"),
        ({"datatype": None}, b"0" * 24, "datatype None"),
        ({"name": "y"}, b"0" * 24, "no input 'y'"),
        ({}, np.array([1, 2, 3, 4, 5, np.nan], np.float32).tobytes(), "NaN"),
        ({}, np.array([1, 2, 3, 4, 5, -np.inf], np.float32).tobytes(), "infinity"),
    ],
)
def test_binary_tensors_that_lie_are_refused(changes: dict, binary: bytes, message: str) -> None:
    with pytest.raises(Problem) as problem:
        read_tensor(described(**changes), binary, "x", np.dtype(np.float32), (3,))
    assert (problem.value.status, message in problem.value.message) == (400, True), problem.value.message


def test_a_boolean_is_a_byte_of_0_or_1() -> None:
    shown = described(datatype="BOOL", parameters={"binary_data_size": 6})
    read = read_tensor(shown, b"\0\1\1\0\0\1", "x", np.dtype(bool), (3,))
    assert read.tolist() == [[False, True, True], [False, False, True]]
    with pytest.raises(Problem, match="neither 0 nor 1"):
        read_tensor(shown, b"\0\1\2\0\0\1", "x", np.dtype(bool), (3,))
    with pytest.raises(Problem, match="found whole numbers"):
        read_tensor(
            described(datatype="BOOL", parameters=None, data=[0, 1, 1, 0, 0, 1]), b"", "x", np.dtype(bool), (3,)
        )


def test_numbers_that_half_precision_cannot_hold_are_refused() -> None:
    shown = described(datatype="FP16", parameters=None, data=[0.0] * 5 + [65_505.0])
    with pytest.raises(Problem, match="finite in float16"):
        read_tensor(shown, b"", "x", np.dtype(np.float16), (3,))


# --- over HTTP --------------------------------------------------------------------------------------------------


def infer(server: ServerProcess, document: dict, binary: bytes = b"", length: str | None = None) -> httpx.Response:
    text = orjson.dumps(document)
    headers = {"Inference-Header-Content-Length": length or str(len(text))}
    url = f"{server.url}/v2/models/cartpole/infer"
    return httpx.post(url, content=text + binary, headers=headers, trust_env=False)


def observed(size: int = OBSERVATIONS.nbytes) -> dict[str, Any]:
    shape = list(OBSERVATIONS.shape)
    return {"name": "observation", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}}


def test_binary_in_and_out(server: ServerProcess) -> None:
    outputs = [{"name": "logits", "parameters": {"binary_data": True}}, {"name": "action"}]
    answer = infer(server, {"id": "r-1", "inputs": [observed()], "outputs": outputs}, OBSERVATIONS.tobytes())
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    document, binary = orjson.loads(answer.content[:length]), answer.content[length:]
    assert document["id"] == "r-1"
    logits, action = document["outputs"]
    assert logits == {
        "name": "logits",
        "shape": [8, 2],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(binary)},
    }
    assert np.frombuffer(binary, "<f4").reshape(8, 2).argmax(1).tolist() == action["data"]


def test_outputs_may_differ_from_what_the_request_asks_of_all(server: ServerProcess) -> None:
    outputs = [{"name": "action"}, {"name": "value", "parameters": {"binary_data": False}}]
    document = {"inputs": [observed()], "outputs": outputs, "parameters": {"binary_data_output": True}}
    answer = infer(server, document, OBSERVATIONS.tobytes())
    length = int(answer.headers["inference-header-content-length"])
    action, value = orjson.loads(answer.content[:length])["outputs"]
    assert action["parameters"] == {"binary_data_size": 64}
    assert len(value["data"]) == 8
    assert len(answer.content) == length + 64


@pytest.mark.parametrize(
    ("changes", "length", "message"),
    [
        ({"inputs": [observed(size=12)]}, None, "128 bytes follow"),
        ({}, "100000", "but the body has"),
        ({}, "3", "not JSON"),
        ({"id": 7}, None, "`id` must be a text"),
        ({"parameters": {"binary_data_output": "yes"}}, None, "`binary_data_output` must be true or false"),
        ({"outputs": [{"name": "value", "parameters": {"binary_data": 1}}]}, None, "`binary_data` must be"),
        ({"outputs": [{"name": "logits", "parameters": {"classification": 2}}]}, None, "'classification' is not"),
        ({"outputs": [{"name": ["value"]}]}, None, "no output ['value']"),
    ],
)
def test_bad_binary_requests_are_refused(server: ServerProcess, changes: dict, length: str, message: str) -> None:
    answer = infer(server, {"inputs": [observed()], **changes}, OBSERVATIONS.tobytes(), length)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text

"""Whatever bytes reach the socket: no answer is a 5xx, none is waited for in vain, and the next one is right."""

import re
import socket
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loomrl.serving.process import ServerProcess
from tests.support.policies import OBSERVATIONS, discrete_folder

INFER = "/v2/models/cartpole/infer"
ASK = orjson.dumps({"agent_id": "a", "observation": OBSERVATIONS[0].tolist()})
TENSOR = {"name": "observation", "datatype": "FP32"}
TRUE = orjson.dumps({"inputs": [{**TENSOR, "shape": [2, 4], "data": OBSERVATIONS[:2].ravel().tolist()}]})
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
fuzzed = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, home = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("home")
    environment = {"LOOMRL_HOME": str(home), "LOOMRL_OPERATOR_TOKEN": ""}
    server = ServerProcess("cartpole", champion_folder=discrete_folder(folder), rate=1e6, environment=environment)
    with server:
        yield int(server.url.rpartition(":")[2])
        assert "Traceback" not in server.log()


def request(path: str, body: bytes, *lines: bytes, length: int | None = None) -> bytes:
    """A POST; `length` is what it says of its body, where that is not the truth."""
    said = b"content-length: %d" % (len(body) if length is None else length)
    head = [b"POST %b HTTP/1.1" % path.encode(), b"host: 127.0.0.1", *([] if length == -1 else [said]), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def answers(port: int, sent: bytes, close: bool = False) -> list[tuple[int, bytes]]:
    """Everything the server says until it closes: status and what follows.

    It closes when nothing more comes, or with `close` because the last request asks it to.
    """
    last = request("/decide", ASK, b"connection: close") if close else b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        received = b""
        try:
            connection.sendall(sent + last)
            if not close:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                received += part
        except ConnectionError:  # it closed before it had read everything
            pass
    _, *told = STATUS.split(received)
    return [(int(status), rest) for status, rest in zip(told[::2], told[1::2], strict=True)]


def check(port: int, sent: bytes) -> list[int]:
    """No 5xx for these bytes, and an agent that asks next is answered."""
    statuses = [status for status, _ in answers(port, sent)]
    assert all(status < 500 for status in statuses), statuses
    assert [status for status, _ in answers(port, request("/decide", ASK))] == [200]
    return statuses


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good request with some of its bytes replaced, taken out or doubled."""
    sent = draw(st.sampled_from([request("/decide", ASK), request(INFER, ASK), request("/override", ASK)]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(sent)))
        end = draw(st.integers(start, min(len(sent), start + 8)))
        sent = sent[:start] + draw(st.sampled_from([b"", sent[start:end] * 2]) | st.binary(max_size=8)) + sent[end:]
    return sent


@fuzzed
@given(damaged())
def test_damaged_requests(port: int, sent: bytes) -> None:
    check(port, sent)


NAMES = st.sampled_from(
    [b"content-length", b"content-type", b"content-encoding", b"accept-encoding", b"transfer-encoding", b"connection"]
    + [b"authorization", b"x-request-id", b"inference-header-content-length", b"expect", b"host", b"upgrade", b"x"]
)
VALUES = st.sampled_from(
    [b"", b"0", b"-1", b"1e3", b"99999999999999999999", b"gzip", b"deflate;q=nan", b"identity", b"chunked", b"br"]
    + [b"close", b"100-continue", b"websocket", b"h2c", b"Bearer ", b"Bearer \xff", b"127.0.0.1", b"[::1", b"\x80"]
) | st.binary(max_size=12)


@fuzzed
@given(st.sampled_from(["/decide", INFER, "/override", "/status"]), st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_any_headers(port: int, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    check(port, request(path, ASK, *(b"%b: %b" % header for header in headers)))


WHOLE = {  # what is sent, and how it is answered
    200: [request("/decide", ASK), request(INFER, TRUE), b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"],
    400: [request("/decide", b"{"), request(INFER, ASK), request("/override", b"[]", b"accept-encoding: gzip")],
    404: [request("/nowhere", ASK), request("/feedback", b'{"decision_id": "none", "reward": 1}')],
    405: [request("/status", ASK), b"DELETE /decide HTTP/1.1\r\nhost: localhost\r\n\r\n"],
}


@fuzzed
@given(st.lists(st.sampled_from([(status, sent) for status, each in WHOLE.items() for sent in each]), max_size=8))
def test_requests_one_behind_the_other_are_answered_in_order(port: int, sent: list[tuple[int, bytes]]) -> None:
    statuses = [status for status, _ in answers(port, b"".join(one for _, one in sent), close=True)]
    assert statuses == [status for status, _ in sent] + [200]


def test_a_body_behind_the_offer_of_another_protocol_is_refused(port: int) -> None:
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__")
    for path in ("/decide", "/override"):
        ((status, told),) = answers(port, request(path, ASK, *offer) + request("/decide", ASK))
        assert status == 400
        assert b"speaks HTTP/1.1 alone" in told
    assert [status for status, _ in answers(port, b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n")] == [200]


CHUNK = st.tuples(st.binary(max_size=40), st.integers(-3, 3), st.sampled_from([b"\r\n", b"\n", b"", b";x=y\r\n"]))


@fuzzed
@given(st.sampled_from(["/decide", INFER, "/override"]), st.lists(CHUNK, max_size=5), st.booleans())
@example("/decide", [(ASK, 0, b"\r\n")], True)
def test_chunked_bodies(port: int, path: str, chunks: list[tuple[bytes, int, bytes]], ended: bool) -> None:
    body = b"".join(b"%x%b%b\r\n" % (max(len(data) + off, 0), end, data) for data, off, end in chunks)
    body += b"0\r\n\r\n" if ended else b""
    statuses = check(port, request(path, body, b"transfer-encoding: chunked", length=-1))
    if ended and all(data and off == 0 and end.endswith(b"\r\n") for data, off, end in chunks):
        assert len(statuses) == 1, "a body that is well-formed has one answer"


@fuzzed
@given(st.sampled_from(["/decide", INFER]), st.integers(-len(ASK), 300))
def test_a_content_length_that_lies(port: int, path: str, off: int) -> None:
    statuses = check(port, request(path, ASK, length=len(ASK) + off))
    if off > 0:
        assert statuses == []  # the rest never came
    elif path == "/decide":
        assert statuses[0] == (200 if off == 0 else 400)


@fuzzed
@given(
    st.integers(0, 3), st.integers(0, 3), st.integers(-2, 2), st.integers(-1, 1), st.sampled_from([0, 0, 1, -1, 10**17])
)
@example(2, 2, 0, 0, 0)
def test_binary_tensors_whose_lengths_lie(
    port: int, rows: int, sent_rows: int, cut: int, size_off: int, length_off: int
) -> None:
    data = OBSERVATIONS[:sent_rows].tobytes()
    data = data[: len(data) + cut] if cut < 0 else data + b"\0" * cut
    tensor = {**TENSOR, "shape": [rows, 4], "parameters": {"binary_data_size": len(data) + size_off}}
    text = orjson.dumps({"inputs": [tensor]})
    header = b"inference-header-content-length: %d" % (len(text) + length_off)
    ((status, told),) = answers(port, request(INFER, text + data, header))
    is_true = rows == sent_rows > 0 and cut == size_off == length_off == 0
    assert status == (200 if is_true else 400), told

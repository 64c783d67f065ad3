"""Compressed bodies: what comes back is what was sent, bombs and damage are refused, answers are packed when asked."""

import gzip
import tracemalloc
import zlib

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.serving.process import ServerProcess
from loomrl.system.http.compression import accepted, compress, inflate
from loomrl.system.http.problems import Problem
from tests.support.policies import OBSERVATIONS

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
MEBIBYTE = 2**20
DECIDE = orjson.dumps({"agent_id": "packed", "observation": OBSERVATIONS[0].tolist()})


def refused(body: bytes, encoding: str, max_bytes: int = 100) -> int:
    with pytest.raises(Problem) as problem:
        inflate(body, encoding, max_bytes)
    return int(problem.value.status)


@pytest.mark.parametrize("encoding", PACK)
@given(body=st.binary(max_size=300))
def test_round_trip_of_any_body(encoding: str, body: bytes) -> None:
    assert inflate(PACK[encoding](body), encoding, 300) == body
    assert inflate(compress(body, encoding), encoding.upper(), 300) == body


@pytest.mark.parametrize("encoding", PACK)
def test_the_limit_holds_for_what_is_unpacked(encoding: str) -> None:
    assert inflate(PACK[encoding](b" " * 100), encoding, 100) == b" " * 100
    assert refused(PACK[encoding](b" " * 101), encoding) == 413


@pytest.mark.parametrize("encoding", PACK)
def test_a_bomb_is_never_unpacked(encoding: str) -> None:
    bomb = PACK[encoding](bytes(256 * MEBIBYTE))
    tracemalloc.start()
    assert refused(bomb, encoding, MEBIBYTE) == 413
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MEBIBYTE


@pytest.mark.parametrize("encoding", PACK)
def test_damaged_bodies_are_refused(encoding: str) -> None:
    whole = PACK[encoding](b"0123456789" * 3)
    assert refused(whole[:-1], encoding) == 400
    assert refused(whole + b"x", encoding) == 400
    assert refused(b"no such stream", encoding) == 400
    assert refused(b"", encoding) == 400
    for place in range(len(whole) - 4, len(whole)):  # the checksum
        assert refused(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], encoding) == 400


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_other_encodings_are_refused(encoding: str) -> None:
    assert refused(b"", encoding) == 415


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", None),
        ("identity", None),
        ("br", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("GZIP ; q=0.1", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=high", None),
        ("*", "gzip"),
        ("gzip;q=0, *", "deflate"),
        ("identity, gzip;q=0.5", None),
    ],
)
def test_what_a_client_accepts(asked: str, expected: str | None) -> None:
    assert accepted(asked) == expected


def post(server: ServerProcess, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{server.url}/decide", content=body, headers=named, trust_env=False)


@pytest.mark.parametrize("encoding", PACK)
def test_a_server_reads_compressed_requests(server: ServerProcess, encoding: str) -> None:
    plain = post(server, DECIDE).json()
    packed = post(server, PACK[encoding](DECIDE), Content_Encoding=encoding).json()
    assert packed["action"] == plain["action"]
    assert post(server, PACK[encoding](DECIDE)[:-2], Content_Encoding=encoding).status_code == 400
    assert post(server, PACK[encoding](b" " * 200_000), Content_Encoding=encoding).status_code == 413
    assert post(server, DECIDE, Content_Encoding="br").status_code == 415
    assert post(server, DECIDE, Content_Encoding="identity").status_code == 200


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("num_agents", [20, 500])  # packed at once, and in a thread
def test_long_answers_are_compressed_for_those_who_ask(server: ServerProcess, encoding: str, num_agents: int) -> None:
    entries = [{"agent_id": f"{encoding}-{n}", "observation": OBSERVATIONS[0].tolist()} for n in range(num_agents)]
    body = orjson.dumps({"requests": entries})
    packed = post(server, body, Accept_Encoding=encoding)
    plain = post(server, body, Accept_Encoding="identity")
    assert packed.headers["content-encoding"] == encoding
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert "content-encoding" not in plain.headers
    assert [one["action"] for one in packed.json()["decisions"]] == [one["action"] for one in plain.json()["decisions"]]
    assert "content-encoding" not in post(server, DECIDE, Accept_Encoding=encoding).headers

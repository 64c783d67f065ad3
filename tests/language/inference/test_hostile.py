"""What hostile clients of an engine tried, and did not get."""

import os
import shutil
from pathlib import Path

import httpx
import pytest

from loomrl.language.inference.settings import EngineSettings

MOST = EngineSettings(policy=Path()).max_prompt_bytes
JSON = {"Content-Type": "application/json"}
FIREFOX = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"}


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}]
)
def test_an_old_browser_that_names_no_page_does_nothing(server: httpx.Client, headers: dict[str, str]) -> None:
    """A form without fields, and a Blob without a type."""
    for path, content in (("/pause", b""), ("/pause_generation", b""), ("/generate", b'{"text": "1"}')):
        assert server.post(path, content=content, headers=FIREFOX | headers).status_code == 415
    assert server.get("/is_paused").json() == {"is_paused": False}
    assert server.post("/resume").status_code == 200


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/generate", b'{"text":"%b"}' % (b"1+2=" * (MOST // 4))),
        ("/generate", b'{"input_ids":[%b1]}' % (b"1," * (MOST // 2))),
        ("/tokenize", b'{"prompt":"%b"}' % (b"1+2=" * (MOST // 4))),
        ("/v1/completions", b'{"prompt":[%b[]]}' % (b"[]," * 60_000)),
        ("/v1/chat/completions", b'{"messages":[%b{}]}' % (b"{}," * 60_000)),
        ("/generate", b'{"input_ids":[%b[]]}' % (b"[]," * 60_000)),
    ],
)
def test_what_would_keep_others_waiting_is_not_read(server: httpx.Client, path: str, content: bytes) -> None:
    answer = server.post(path, content=content, headers=JSON)
    assert (answer.status_code, "at most" in answer.json()["detail"]) == (413, True)


def test_a_long_prompt_is_read(server: httpx.Client) -> None:
    """As far as its policy has room for it."""
    answer = server.post("/tokenize", json={"prompt": "1+2=" * 2**16})
    assert answer.json()["count"] == 1 + 4 * 2**16
    answer = server.post("/generate", json={"text": "1+2=" * 2**16})
    assert answer.status_code == 400


def test_weights_are_larger(server: httpx.Client) -> None:
    asked = {"serialized_named_tensors": ["A" * 2 * MOST], "load_format": "safetensors"}
    assert server.post("/update_weights_from_tensor", json=asked).status_code == 400


def test_weights_that_are_a_pipe_keep_no_others_out(
    server: httpx.Client, policy_folders: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(policy_folders[1], tmp_path / "policy")
    (weights,) = (tmp_path / "policy").glob("*.safetensors")
    weights.unlink()
    os.mkfifo(weights)
    answer = server.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "policy")})
    assert (answer.status_code, f"no file: {weights.name}" in answer.json()["message"]) == (400, True)
    again = {"model_path": str(policy_folders[1]), "weight_version": "7"}
    assert server.post("/update_weights_from_disk", json=again).status_code == 200


@pytest.mark.parametrize("path", ["/" + "a" * 5_000, "/a\0b", "/etc/passwd", "/dev", "/nowhere"])
def test_a_folder_that_is_none_is_refused(server: httpx.Client, path: str) -> None:
    assert server.post("/update_weights_from_disk", json={"model_path": path}).status_code == 400
    asked = {"method": "reload_weights", "kwargs": {"weights_path": path}}
    assert server.post("/collective_rpc", json=asked).status_code == 400

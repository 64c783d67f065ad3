"""A page of another server gets nothing from an engine."""

import httpx
import pytest

FOREIGN = [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"


@pytest.mark.parametrize("headers", [*FOREIGN, {"User-Agent": FIREFOX}, {"Host": "evil.example"}])
def test_no_page_flushes_the_cache_by_a_get(server: httpx.Client, headers: dict[str, str]) -> None:
    assert server.get("/flush_cache", headers=headers).status_code in (403, 421)


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", ["/generate", "/pause", "/update_weights_from_disk", "/collective_rpc"])
def test_nor_changes_anything_by_a_post(server: httpx.Client, path: str, headers: dict[str, str]) -> None:
    assert server.post(path, json={}, headers=headers).status_code == 403
    assert server.get("/is_paused").json()["is_paused"] is False


def test_programs_are_answered(server: httpx.Client) -> None:
    assert server.get("/flush_cache").status_code == 200


def test_headers_without_end_are_refused(server: httpx.Client) -> None:
    answer = server.get("/health", headers={"x": "y" * 40_000})
    assert (answer.status_code, "longer than" in answer.json()["detail"]) == (431, True)

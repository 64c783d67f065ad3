"""Whatever is sent to whichever endpoint: an answer that is no failure of the hub, and nothing lost or wedged."""

import json
import string
from contextlib import suppress

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import environment, group, registration

PATHS = [
    "/", "/register", "/register-env", "/disconnect-env", "/info", "/wandb_info", "/status", "/status-env",
    "/scored_data", "/scored_data_list", "/batch", "/batch?lease=1", "/batch/0/ack", "/latest_example",
    "/policy_version", "/hub", "/metrics", "/dashboard", "/nothing",
]  # fmt: skip
BODIES = [registration(), environment(), {"env_id": 0}, group(), [group()], {"version": 1}]
GROUP_FIELDS = [*group(), "advantages", "messages", "generation_params", "overrides", "images", "env_id"]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def damaged(draw: st.DrawFn) -> object:
    """A good body with one field exchanged, or anything at all."""
    body = draw(st.sampled_from(BODIES))
    if isinstance(body, list):
        return [{**body[0], draw(st.sampled_from(GROUP_FIELDS)): draw(values)}]
    if draw(st.booleans()):
        return draw(values)
    return {**body, draw(st.sampled_from([*body, *GROUP_FIELDS])): draw(values)}


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    st.sampled_from(PATHS),
    damaged() | st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(["Content-Encoding", "Content-Type", "Idempotency-Key", "X-Policy-Version", "Prefer", "Range"]),
        st.text(string.ascii_letters + string.digits + "=/;,-", max_size=12) | st.just("gzip"),
        max_size=2,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)
def test_nothing_that_is_sent_makes_the_hub_fail(
    hub: httpx.Client, method: str, path: str, body: object, headers: dict[str, str]
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = hub.request(method, path, content=content, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code < 500, (answer.status_code, answer.text)
    if answer.status_code >= 400 and method != "HEAD":
        assert answer.text == "Invalid gzip payload" or answer.json()["detail"], answer.text


def test_and_it_delivers_afterwards_as_before(hub: httpx.Client) -> None:
    hub.post("/register", json=registration(4))
    for mark in range(2):
        assert hub.post("/scored_data", json=group(2, mark)).json() == {"status": "received"}
    assert len(hub.get("/batch").json()["batch"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/register", {}, ["body", "wandb_group"]),
        ("/register", registration(batch_size="many"), ["body", "batch_size"]),
        ("/register-env", {**environment(), "weight": None}, ["body", "weight"]),
        ("/disconnect-env", {}, ["body", "env_id"]),
        ("/scored_data", {"tokens": [[1]], "masks": [[1]]}, ["body", "scores"]),
        ("/scored_data", group(messages=[[{"role": "user"}]]), ["body", "messages", 0, 0, "content"]),
        ("/scored_data", group(env_id=2**70), ["body", "env_id"]),
        ("/scored_data", [], ["body"]),
        ("/scored_data_list", {}, ["body"]),
        ("/scored_data_list", [group(), {**group(), "masks": 1}], ["body", 1, "masks"]),
        ("/policy_version", {"version": -1}, ["body", "version"]),
    ],
)
def test_errors_name_the_field(hub: httpx.Client, path: str, body: object, place: list[object]) -> None:
    answer = hub.post(path, json=body)
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, place)


@pytest.mark.parametrize("lease", ["0", "-1", "nan", "soon", "1e9"])
def test_leases_of_no_length_are_refused(hub: httpx.Client, lease: str) -> None:
    assert hub.get(f"/batch?lease={lease}").status_code == 422


def test_a_form_of_a_web_page_is_no_body(hub: httpx.Client) -> None:
    answer = hub.post("/scored_data", content=json.dumps(group()), headers={"Content-Type": "text/plain"})
    assert (answer.status_code, "text/plain" in answer.json()["detail"][0]["msg"]) == (422, True)


def test_a_body_that_never_ends_is_cut(hub_process: HubProcess) -> None:
    def endless() -> object:
        while True:
            yield b"[" * 2**20

    with httpx.Client(base_url=hub_process.url, trust_env=False, timeout=60) as client:
        with suppress(httpx.TransportError):  # it is answered and cut while it is still sent
            assert client.post("/scored_data", content=endless()).status_code == 413
        assert client.get("/").status_code == 200


def test_what_would_keep_everybody_waiting_is_not_read(hub: httpx.Client) -> None:
    """Millions of lists in one body: to parse them takes half a minute, in which nobody else is answered."""
    for path in ("/scored_data", "/scored_data_list"):
        content = b'{"tokens":[%b[]]}' % (b"[]," * 600_000)
        answer = hub.post(path, content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, "at most" in answer.json()["detail"]) == (413, True)
    many = {"tokens": [[1]] * 100_000, "masks": [[1]] * 100_000, "scores": [0.0] * 100_000}
    assert hub.post("/scored_data", json=many).status_code == 200

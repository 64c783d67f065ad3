"""What the wire lacks: leases, versions, limits, tokens, the view. None of it is in the wire's way."""

import hashlib
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loomrl.errors import ConfigError
from loomrl.language.trajectory.process import HubProcess
from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.groups import GroupIntake
from loomrl.language.trajectory.state.hub import Hub
from tests.support.atropos import environment, group, registration


def start(hub: httpx.Client, batch_size: int = 4, num_groups: int = 0) -> None:
    hub.post("/register", json=registration(batch_size)).raise_for_status()
    hub.get("/batch")
    for mark in range(num_groups):
        hub.post("/scored_data", json=group(2, mark), headers={"X-Policy-Version": str(mark)})


def test_a_leased_batch_is_gone_when_it_is_acknowledged(hub: httpx.Client) -> None:
    start(hub, 4, 2)
    leased = hub.get("/batch?lease=60").json()
    assert leased.keys() == {"batch", "batch_id", "policy_versions", "received_steps"}
    assert (leased["policy_versions"], leased["received_steps"]) == ([0, 1], [0, 0])
    assert hub.get("/batch").json() == {"batch": None}
    for _ in range(2):
        assert hub.post(f"/batch/{leased['batch_id']}/ack").json() == {"status": "success"}
    assert hub.get("/hub").json()["queues"]["leased_batches"] == 0


def test_one_that_is_not_comes_again_with_its_number(hub: httpx.Client) -> None:
    start(hub, 4, 2)
    leased = hub.get("/batch?lease=0.01").json()
    time.sleep(0.02)
    again = hub.get("/batch?lease=60").json()
    assert again == leased


def test_an_expired_lease_goes_to_a_plain_trainer_for_good() -> None:
    hub = Hub(HubSettings())
    hub.state.registration = registration(2)
    kept, fragment, _ = GroupIntake(HubSettings()).prepare(group(2), None)
    hub.add(kept, fragment, 0.0)
    batch = hub.next_batch(0.0)
    assert batch is not None
    hub.lease(batch, 10.0)
    assert hub.next_batch(9.0) is None
    assert hub.next_batch(10.0) is batch
    hub.deliver(batch)
    assert hub.acknowledge(batch.id)
    assert not hub.acknowledge(batch.id + 1)


def test_an_unknown_batch_cannot_be_acknowledged(hub: httpx.Client) -> None:
    assert hub.post("/batch/999999999/ack").status_code == 404


def test_outdated_groups_are_refused_and_not_handed_out(tmp_path: Path) -> None:
    with (
        HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}", max_staleness=1) as process,
        httpx.Client(base_url=process.url, trust_env=False) as hub,
    ):
        start(hub, 4, 4)  # of versions 0 to 3
        hub.post("/policy_version", json={"version": 3})
        assert hub.get("/policy_version").json() == {"version": 3}
        answer = hub.post("/scored_data", json=group(2), headers={"X-Policy-Version": "1"})
        assert (answer.status_code, "version 1" in answer.json()["detail"][0]["msg"]) == (422, True)
        assert hub.get("/batch?lease=60").json()["policy_versions"] == [2, 3]
        assert hub.get("/status").json()["queue_size"] == 0
        assert hub.post("/scored_data", json=group(2), headers={"X-Policy-Version": "old"}).status_code == 422


def test_scores_are_clipped_and_long_sequences_refused_where_that_is_wanted(tmp_path: Path) -> None:
    options = {"database_url": f"sqlite:///{tmp_path / 'hub.db'}", "lowest_score": -1, "highest_score": 0.5}
    with (
        HubProcess(max_sequence_tokens=2, **options) as process,
        httpx.Client(base_url=process.url, trust_env=False) as hub,
    ):
        start(hub, 2)
        hub.post("/scored_data", json={**group(2), "scores": [-7, 3]})
        assert hub.get("/batch").json()["batch"][0]["scores"] == [-1.0, 0.5]
        answer = hub.post("/scored_data", json={**group(1), "tokens": [[1, 2, 3]]})
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "tokens"])


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="lowest-score"):
        HubSettings(lowest_score=1.0, highest_score=1.0)
    with pytest.raises(ConfigError, match="silent-seconds"):
        HubSettings(silent_seconds=0)


def test_tokens_say_who_may_do_what(tmp_path: Path) -> None:
    lines = [
        f"{role}:{role}er:{hashlib.sha256(role.encode()).hexdigest()}" for role in ("decide", "observe", "operate")
    ]
    options = {"database_url": f"sqlite:///{tmp_path / 'hub.db'}", "environment": {"LOOMRL_TOKENS": "\n".join(lines)}}
    asked = {
        ("POST", "/register"): {"operate"},
        ("GET", "/batch"): {"operate"},
        ("POST", "/batch/0/ack"): {"operate"},
        ("POST", "/scored_data"): {"decide", "operate"},
        ("POST", "/register-env"): {"decide", "operate"},
        ("GET", "/status"): {"decide", "observe", "operate"},
        ("GET", "/hub"): {"observe", "operate"},
        ("GET", "/metrics"): {"observe", "operate"},
        ("GET", "/"): {None, "decide", "observe", "operate"},
        ("GET", "/dashboard"): {None, "decide", "observe", "operate"},
    }
    with HubProcess(**options) as process, httpx.Client(base_url=process.url, trust_env=False) as hub:
        for (method, path), allowed in asked.items():
            for role in (None, "decide", "observe", "operate"):
                headers = {} if role is None else {"Authorization": f"Bearer {role}"}
                status = hub.request(method, path, headers=headers).status_code
                refusal = 401 if role is None else 403
                assert (status == refusal) == (role not in allowed), (method, path, role, status)
        url = process.url.replace("http://", "http://anyone:operate@")  # as unmodified clients can be told
        assert httpx.get(f"{url}/batch", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/batch".replace("operate", "wrong"), trust_env=False).status_code == 401


def test_the_view_shows_queues_and_environments(hub: httpx.Client) -> None:
    start(hub, 4)
    hub.post("/register-env", json=environment(2, min_batch_allocation=0.25))
    hub.post("/scored_data", json=group(2, env_id=0))
    hub.post("/scored_data", json=group(1, env_id=0))
    hub.post("/scored_data", json=group(8, env_id=0))
    found = hub.get("/hub").json()
    assert (found["queues"]["queued_groups"], found["queues"]["buffered_groups"]) == (1, 1)
    (one,) = found["environments"]
    shown = {"name": "arithmetic_0", "state": "taking part", "minimum": 0.25, "queued_groups": 1, "num_groups": 2}
    assert shown.items() <= one.items()
    assert (one["num_rejected"], one["buffered_groups"]) == (1, 1)


def test_metrics_can_be_read_by_prometheus(hub: httpx.Client) -> None:
    start(hub, 4, 3)
    hub.get("/batch")
    families = {family.name: family for family in text_string_to_metric_families(hub.get("/metrics").text)}
    samples = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert samples["loomrl_hub_queued_groups"] == 1
    assert samples["loomrl_hub_delivered"] >= 2
    assert samples["loomrl_hub_request_seconds"] is not None


def test_the_page_loads_nothing_from_elsewhere(hub: httpx.Client) -> None:
    answer = hub.get("/dashboard")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("<!doctype", "")
    for path in ("/dashboard/page.js", "/dashboard/page.css"):
        assert path in answer.text
        assert hub.get(path).status_code == 200


def test_scores_whose_sum_is_no_number_spoil_nothing(hub: httpx.Client) -> None:
    """Neither what people see of their environment nor the sum of all."""
    assert hub.post("/register", json=registration(batch_size=2)).status_code == 200
    hub.get("/batch")
    env_id = hub.post("/register-env", json=environment()).json()["env_id"]
    before = hub.get("/hub").json()["counts"]["score_sum"]
    for scores in ([1e308, 1e308], [1e200, 1e200], [-1e308, -1e308], [0.5, 1.5]):
        told = hub.post("/scored_data", json={**group(2), "env_id": env_id, "scores": scores})
        assert told.status_code == 200
    shown = hub.get("/hub").json()
    assert shown["counts"]["score_sum"] == before + 1.0
    assert shown["environments"][0]["mean_score"] == 1.0
    assert shown["environments"][0]["num_groups"] == 4

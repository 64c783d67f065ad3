"""The client of a hub."""

import threading
import time

import pytest

from loomrl.errors import ServiceError
from loomrl.language.trajectory.client import HubClient, HubRefused
from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import group


def test_an_environment_and_a_trainer_of_ones_own(own_hub: HubProcess) -> None:
    with HubClient(own_hub.url) as trainer, HubClient(own_hub.url) as environment:
        with pytest.raises(HubRefused, match="not registered"):
            trainer.next_batch()
        trainer.register(batch_size=4, max_token_len=64, num_steps=10)
        assert trainer.next_batch() is None
        env_id = environment.register_environment("arithmetic", group_size=2, max_token_length=64)
        assert environment.post(group(2, 0, env_id=env_id), policy_version=3) == {"status": "received"}
        long = group(2, 1, env_id=env_id, messages=[[{"role": "user", "content": "x" * 5_000}]])
        answer = environment.post_several([long, {"tokens": 1}])
        assert (answer["groups_processed"], answer["rejected"][0]["index"]) == (1, 1)
        assert environment.environment_status(env_id)["queue_size"] == 2
        batch = trainer.next_batch()
        assert batch is not None
        assert [one["tokens"][0][0] for one in batch.groups] == [0, 1]
        assert (batch.policy_versions, batch.received_steps) == ([3, None], [0, 0])
        trainer.acknowledge(batch)
        trainer.set_policy_version(5)
        assert environment.policy_version() == 5
        environment.disconnect_environment(env_id)
        assert trainer.status()["environments"][0]["state"] == "gone"
        with pytest.raises(HubRefused, match="scores"):
            environment.post({"tokens": [[1]], "masks": [[1]]})


def test_it_waits_while_a_hub_restarts(own_hub: HubProcess) -> None:
    with HubClient(own_hub.url) as client:
        client.register(batch_size=2, max_token_len=64, num_steps=10)
        own_hub.kill()
        again = threading.Timer(0.5, own_hub.start)
        again.start()
        assert client.post(group(2)) == {"status": "received"}
        again.join()
        assert client.status()["queues"]["queued_groups"] == 1


def test_it_gives_up_in_the_end() -> None:
    with HubClient("http://127.0.0.1:9", patience_seconds=0.3) as client:
        started = time.monotonic()
        with pytest.raises(ServiceError, match="gave no answer"):
            client.policy_version()
        assert time.monotonic() - started < 30

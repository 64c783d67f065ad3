"""The same learner fed by tasks of this process and by a hub; what is resumed, left out, and handed out again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.domains import get_domain
from loomrl.gym.stream import TaskStream
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LearnerConfig
from loomrl.language.learning.sources import HubSource, TaskSource
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from tests.support.language_models import small_policy
from tests.support.language_policies import wire_of


def tasks(seed: int = 0) -> TaskStream:
    return TaskStream(Curriculum(CurriculumConfig(window=50), ["math"]), seed, {"math": ["addition"]})


def task_source(seed: int = 0) -> TaskSource:
    return TaskSource(tasks(seed), num_prompts=3, num_samples=8, sampling=SamplingConfig(max_tokens=3), seed=seed)


def trainer(seed: int = 0) -> LanguageTrainer:
    return LanguageTrainer(GRPO(LearnerConfig(), small_policy(seed, noise=0.3)), task_source(seed))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}") as process:
        yield process


def test_answers_are_scored_and_heard_of() -> None:
    policy, stream = small_policy(noise=0.3), tasks()
    source = TaskSource(stream, num_prompts=5, num_samples=20, sampling=SamplingConfig(max_tokens=3), seed=0)
    again = tasks()
    for group, (_, task) in zip(source.collect(policy, version=7), again, strict=False):
        assert (len(group), group.policy_version) == (20, 7)
        for tokens, learnt, score in zip(group.tokens, group.loss_mask, group.scores, strict=True):
            start = learnt.index(True)
            assert policy.tokenizer.decode(tokens[:start]) == task.prompt
            assert score == get_domain("math").score(task, policy.tokenizer.decode(tokens[start:])).total
    (outcomes,) = [one["outcomes"] for one in stream.curriculum.state_dict().values()]
    assert len(outcomes) == 0  # two windows of 50 ended


def test_a_resumed_trainer_goes_on_to_the_bit() -> None:
    first = trainer()
    list(first.run(2))
    second = trainer(1)
    second.load_state_dict(first.state_dict())
    assert list(first.run(2)) == list(second.run(2))
    ended, resumed = first.state_dict(), second.state_dict()
    assert ended.keys() == resumed.keys()
    assert all(bytes(memoryview(ended[name])) == bytes(memoryview(resumed[name])) for name in ended if "policy" in name)
    assert ended["source.tasks"] == resumed["source.tasks"]


def test_what_crosses_a_hub_teaches_the_same(hub: HubProcess) -> None:
    """Groups of the same tasks and answers, straight and over the wire, make the same policy to the bit."""
    straight, over_the_wire = trainer(), GRPO(LearnerConfig(), small_policy(noise=0.3))
    (told,) = straight.run(1)
    groups = task_source().collect(small_policy(noise=0.3), version=0)
    with HubClient(hub.url) as client:
        client.register(batch_size=24, max_token_len=24, num_steps=10)
        client.post_several([wire_of(group) for group in groups], policy_version=0)
        (heard,) = LanguageTrainer(over_the_wire, HubSource(client)).run(1)
        assert client.policy_version() == 1
        assert client.next_batch() is None  # acknowledged
    assert heard == told
    first, second = straight.learner.state_dict(), over_the_wire.state_dict()
    assert all(bytes(memoryview(first[name])) == bytes(memoryview(second[name])) for name in first if "policy" in name)


def test_a_batch_that_was_not_learnt_from_comes_again_and_unusable_groups_are_left_out(
    hub: HubProcess, caplog: pytest.LogCaptureFixture
) -> None:
    policy = small_policy(noise=0.3)
    good = task_source().collect(policy, version=0)
    misfit = {**wire_of(good[0]), "scores": [1.0]}
    unknown = wire_of(TokenGroup([[1, 99]] * 8, [[False, True]] * 8, [0.0] * 8))
    with HubClient(hub.url) as client:
        client.register(batch_size=40, max_token_len=24, num_steps=10)
        client.post_several([wire_of(good[0]), misfit, wire_of(good[1]), unknown, wire_of(good[2])])
        batch = client.next_batch(lease_seconds=0.1)
        assert batch is not None
        source = HubSource(client)
        taken = source.collect(policy, version=0)
        assert [group.tokens for group in taken] == [group.tokens for group in good]
        source.acknowledge(1)
        assert client.next_batch() is None
    assert "scores have lengths" in caplog.text
    assert "from 1 to 99" in caplog.text

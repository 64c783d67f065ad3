"""Rollouts: states of LoomRL Gym in, what trainers learn from out, and on to the hub."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from loomrl.errors import ConfigError
from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.facade import EnvironmentType, LoomRLGym, TaskState
from loomrl.gym.stream import TaskStream
from loomrl.language.inference import InferenceEngine, Sampling
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.rollouts import scored_group
from loomrl.language.inference.source import EngineSource
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LearnerConfig
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig as Drawing
from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from tests.support.language_policies import language_policy, log_probs_of


async def states_and_rewards(messages: list[str]) -> tuple[list[TaskState], list[float]]:
    """The first states of two environments, and what messages earn there."""
    async with LoomRLGym(seed=0) as gym:
        environments = [await gym.create_environment(EnvironmentType.MATH, {"kinds": ["addition"]}) for _ in range(2)]
        states = [await environment.reset() for environment in environments]
        steps = [await one.step(message) for one, message in zip(environments, messages, strict=False)]
        return states, [reward for _, reward, _, _ in steps]


def test_states_become_rollouts_that_say_what_was_read_and_written() -> None:
    states, _ = asyncio.run(states_and_rewards([]))
    policy = LanguagePolicy.fresh(0, width=16, num_heads=2)
    with BuiltinEngine() as engine:
        assert engine.load_policy(policy) == 0
        rollouts = engine.generate_rollouts(states, n=2, sampling=Sampling(max_tokens=6, seed=1))
    assert [one.state for one in rollouts] == [states[0], states[0], states[1], states[1]]
    for one in rollouts:
        prompt = policy.tokenizer.prompt(one.state if isinstance(one.state, str) else one.state.text)
        answer = one.token_ids[len(prompt) :]
        assert one.token_ids[: len(prompt)] == prompt
        assert one.mask == [-100] * len(prompt) + answer
        assert one.log_probs[: len(prompt)] == [1.0] * len(prompt)
        assert all(log_prob < 0.0 for log_prob in one.log_probs[len(prompt) :])
        assert policy.tokenizer.decode(answer) == one.text
        assert one.version == 0
    _, rewards = asyncio.run(states_and_rewards([one.text for one in rollouts[:2]]))
    assert len(rewards) == 2


def test_a_scored_group_goes_to_the_hub_with_its_version() -> None:
    with BuiltinEngine(language_policy()) as engine:
        engine.load_policy(language_policy(1))
        group = engine.generate_rollouts(["1+2="], n=2, sampling=Sampling(max_tokens=6, temperature=0.7))
    with HubProcess() as hub, HubClient(hub.url) as trainer:
        trainer.register(batch_size=2, max_token_len=48, num_steps=1)
        trainer.post(scored_group(group, [1.0, 0.0]), policy_version=group[0].version)
        batch = trainer.next_batch(lease_seconds=60)
    assert batch is not None
    assert batch.policy_versions == [1]
    assert batch.groups[0]["tokens"] == [one.token_ids for one in group]
    learnt = TokenGroup.from_wire(batch.groups[0], 1)
    assert learnt.log_probs == [one.log_probs for one in group]
    assert learnt.temperatures == [0.7, 0.7]


def test_a_trainer_finds_the_probabilities_with_which_rollouts_were_drawn() -> None:
    policy = language_policy()
    with BuiltinEngine(policy) as engine:
        rollouts = engine.generate_rollouts(["1+2=", "3-"], n=4, sampling=Sampling(max_tokens=6, temperature=0.5))
    groups = [TokenGroup.from_wire(scored_group(rollouts[i : i + 4], [1.0, 0.0, 0.0, 1.0]), 0) for i in (0, 4)]
    metrics = GRPO(LearnerConfig(n_epochs=1), policy).update(groups)
    assert metrics["importance_weight"] == pytest.approx(1.0, abs=1e-4)


def test_a_group_of_several_versions_or_without_scores_is_refused() -> None:
    with BuiltinEngine(language_policy()) as engine:
        first = engine.generate_rollouts(["1"])
        engine.load_policy(language_policy(1))
        second = engine.generate_rollouts(["1"])
    with pytest.raises(ConfigError, match=r"versions \[0, 1\]"):
        scored_group([*first, *second], [0.0, 1.0])
    with pytest.raises(ConfigError, match="1 rollouts have 2 scores"):
        scored_group(first, [0.0, 1.0])


def tasks() -> TaskStream:
    return TaskStream(Curriculum(CurriculumConfig(window=50), ["math"]), 0, {"math": ["addition"]})


def trained(engine: InferenceEngine, seed: int = 0) -> LanguageTrainer:
    """GRPO whose groups an engine answers."""
    drawn = Drawing(max_tokens=3, temperature=1.3)
    source = EngineSource(engine, tasks(), num_prompts=3, num_samples=8, sampling=drawn, seed=seed)
    return LanguageTrainer(GRPO(LearnerConfig(), language_policy()), source)


def test_a_trainer_hands_its_weights_over_before_it_asks() -> None:
    with BuiltinEngine() as engine:
        trainer = trained(engine)
        for version in range(3):
            [group, *_] = groups = trainer.source.collect(trainer.learner.policy, version)
            assert {one.policy_version for one in groups} == {engine.version} == {version}
            prompt = group.loss_mask[0].index(True)
            told = group.log_probs[0][prompt:]
            expected = log_probs_of(
                trainer.learner.policy, group.tokens[0][:prompt], group.tokens[0][prompt:], temperature=1.3
            )
            assert told == pytest.approx(expected, abs=1e-4)
            trainer.learner.update(groups)


def test_an_engine_with_other_weights_by_the_same_version_is_not_asked() -> None:
    with BuiltinEngine(language_policy(1)) as engine, pytest.raises(ConfigError, match="version 0 is served already"):
        trained(engine).source.collect(language_policy(), 0)


def test_nothing_is_learnt_from_answers_that_a_pause_cut_short() -> None:
    with BuiltinEngine(language_policy(), max_running=8) as engine, ThreadPoolExecutor(1) as pool:
        source = trained(engine).source
        assert len(source.collect(language_policy(), 0)) == 3
        engine.pause("keep")
        collected = pool.submit(source.collect, language_policy(), 0)
        while not engine.scheduler.num_waiting:
            assert not collected.done()
            time.sleep(0.001)
        engine.pause("abort")
        assert collected.result() == []


def test_a_resumed_trainer_asks_its_engine_the_same() -> None:
    with BuiltinEngine() as engine, BuiltinEngine() as other:
        first = trained(engine)
        list(first.run(2))
        second = trained(other, seed=1)
        second.load_state_dict(first.state_dict())
        assert list(first.run(1)) == list(second.run(1))

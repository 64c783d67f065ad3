"""`InferenceEngine()`: made as the specification shows, for texts and for actions."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from loomrl import InferenceEngine, PPOTrainer
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.language.inference import Sampling
from loomrl.language.inference.local import LocalEngine
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer

GREEDY = Sampling(temperature=0.0)
STATES = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def test_the_specifications_example_runs(loomrl_home: Path) -> None:
    trainer = PPOTrainer({"environment": "CartPole-v1", "hidden_sizes": [8], "engine": "torch"})
    with InferenceEngine() as engine:
        assert isinstance(engine, LocalEngine)
        assert engine.version == -1
        assert engine.load_policy(trainer.policy) == 0
        rollouts = engine.generate_rollouts(list(STATES), n=3)
        assert len(rollouts) == 12
        outputs = trainer.policy.forward(torch.from_numpy(STATES))
        log_probs, values = torch.log_softmax(outputs["logits"], -1).detach(), outputs["value"].detach()
        for number, rollout in enumerate(rollouts):
            assert np.array_equal(rollout.state, STATES[number // 3])
            assert rollout.log_prob == pytest.approx(float(log_probs[number // 3, int(rollout.action)]), abs=1e-6)
            assert rollout.value == pytest.approx(float(values[number // 3]), abs=1e-6)
            assert rollout.version == 0
        greedy = engine.generate_rollouts(list(STATES), sampling=GREEDY)
        assert [int(one.action) for one in greedy] == log_probs.argmax(-1).tolist()


def test_actions_are_drawn_from_the_policy(loomrl_home: Path) -> None:
    """Continuous ones are clipped to their bounds, and keep the probability of what was drawn."""
    policy = PPOTrainer({"environment": "Pendulum-v1", "hidden_sizes": [8], "initial_log_std": 1.0}).policy
    state = np.array([1.0, 0.0, 0.5], np.float32)
    with InferenceEngine(seed=3) as engine:
        engine.load_policy(policy)
        drawn = engine.generate_rollouts([state], n=4_000)
    mean = policy.forward(torch.from_numpy(state[None]))["mean"].item()
    actions = np.array([one.action[0] for one in drawn])
    assert (np.abs(actions) <= 2.0).all()
    inside = np.abs(actions) < 2.0
    log_probs = np.array([one.log_prob for one in drawn])
    expected = -0.5 * ((actions - mean) / math.e) ** 2 - 1.0 - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_probs[inside], expected[inside], atol=1e-4)
    shares = [(actions <= -2.0).mean(), (actions >= 2.0).mean()]
    tails = [0.5 * math.erfc((2.0 + sign * mean) / math.e / math.sqrt(2)) for sign in (1, -1)]
    np.testing.assert_allclose(shares, tails, atol=0.03)


def test_each_version_is_a_copy(loomrl_home: Path) -> None:
    policy = PPOTrainer({"environment": "CartPole-v1", "hidden_sizes": [8]}).policy
    bias = dict(policy.value_head.named_parameters())["value.bias"]
    with InferenceEngine() as engine:
        engine.load_policy(policy)
        before = engine.generate_rollouts([STATES[0]], sampling=GREEDY)[0]
        with torch.no_grad():
            bias += 1.0
        assert engine.generate_rollouts([STATES[0]], sampling=GREEDY)[0].value == before.value
        assert engine.load_policy(policy) == 1
        after = engine.generate_rollouts([STATES[0]], sampling=GREEDY)[0]
        assert (after.version, after.value) == (1, pytest.approx(before.value + 1.0, abs=1e-5))
        with torch.no_grad():
            bias += math.nan
        with pytest.raises(ArtifactError, match="not finite"):
            engine.load_policy(policy)
        assert engine.version == 1


def test_texts_are_completed_by_the_builtin_engine() -> None:
    policy = LanguagePolicy.fresh(seed=0, tokenizer=CharacterTokenizer("0123456789+="), max_tokens=12)
    with InferenceEngine() as engine:
        engine.load_policy(policy)
        rollouts = engine.generate_rollouts(["1+2="], n=2, sampling=Sampling(max_tokens=3))
        assert [one.version for one in rollouts] == [0, 0]
        assert engine.complete(["1+2="])[0].completions


def test_wrong_calls_are_refused(loomrl_home: Path) -> None:
    policy = PPOTrainer({"environment": "CartPole-v1", "hidden_sizes": [8]}).policy
    texts = LanguagePolicy.fresh(seed=0, tokenizer=CharacterTokenizer("0123456789+="), max_tokens=12)
    other = PPOTrainer({"environment": "Acrobot-v1", "hidden_sizes": [8]}).policy
    with InferenceEngine() as engine:
        with pytest.raises(ServiceError, match="no policy"):
            engine.generate_rollouts(["1+2="])
        with pytest.raises(ConfigError, match="found dict"):
            engine.load_policy({})
        engine.load_policy(policy)
        with pytest.raises(ConfigError, match="a LanguagePolicy came to an engine of other policies"):
            engine.load_policy(texts)
        with pytest.raises(ConfigError, match="answers observations, not texts"):
            engine.complete(["1+2="])
        with pytest.raises(ConfigError, match=r"state 0 has the shape \(3,\); the policy observes \(4,\)"):
            engine.generate_rollouts([np.zeros(3)])
        with pytest.raises(ConfigError, match="state 0 holds nan"):
            engine.generate_rollouts([np.full(4, np.nan)])
        with pytest.raises(ConfigError, match="n is -1"):
            engine.generate_rollouts([np.zeros(4)], n=-1)
        with pytest.raises(ConfigError, match="version -5"):
            engine.update(policy, -5)
        engine.update(policy, 0)  # the same weights again
        with pytest.raises(ConfigError, match="version 0 is served already, with other weights"):
            engine.update(PPOTrainer({"environment": "CartPole-v1", "hidden_sizes": [8], "seed": 1}).policy, 0)
        seeded = [engine.generate_rollouts([STATES[0]], n=20, sampling=Sampling(seed=4)) for _ in range(2)]
        assert [one.action for one in seeded[0]] == [one.action for one in seeded[1]]
        with pytest.raises(ConfigError, match="temperature 0.5"):
            engine.generate_rollouts([np.zeros(4)], sampling=Sampling(temperature=0.5))
        with pytest.raises(ConfigError, match="other observations or actions"):
            engine.load_policy(other)


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (gymnasium.spaces.Discrete(3), [0, 2, np.int8(1)], [3, -1, 1.7, np.nan]),
        (gymnasium.spaces.Discrete(3, start=5), [5, 7], [0, 8]),
        (gymnasium.spaces.Box(0, 255, (2,), np.uint8), [[0, 255]], [[300, 0], [0, -1], [1.5, 0]]),
        (gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), [[0, 1], [0.1, 1.5]], [[0, 1e300], [np.inf, 0], "ab"]),
        (gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), [], [["a", "b"], [[1], [1, 2]], None, [None, 0]]),
        (FlatBox(gymnasium.spaces.MultiDiscrete([3, 4])), [[2, 3]], [[3, 0], [0, -1], [0.5, 0]]),
    ],
)
def test_no_observation_is_altered(space: gymnasium.Space[Any], right: list[Any], wrong: list[Any]) -> None:
    policy = ActorCriticPolicy.for_spaces("ppo", space, gymnasium.spaces.Discrete(2), (4,), "tanh", False)
    with InferenceEngine() as engine:
        engine.load_policy(policy)
        for state in right:
            (rollout,) = engine.generate_rollouts([state])
            assert rollout.state.dtype == space.dtype
            np.testing.assert_allclose(rollout.state, state, rtol=1e-6)
        for state in wrong:
            fits = np.zeros(space.shape) + (space.start if isinstance(space, gymnasium.spaces.Discrete) else 0)
            with pytest.raises(ConfigError, match=r"state 1 .*the policy observes .*"):
                engine.generate_rollouts([fits, state])

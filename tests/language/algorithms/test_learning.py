"""GRPO and PPO on texts as algorithms of the training stage: groups, examples first, and resuming to the bit."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from loomrl.algorithms.registry import validate
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.text import TextBox
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, LoomRLError
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.held_out import is_held_out
from loomrl.language.algorithms import grpo, token_ppo
from loomrl.language.algorithms.answering import answer_bytes
from loomrl.language.algorithms.learning import TextLearning
from loomrl.language.policies.tokens import BOS, EOS, PAD
from loomrl.system.files import canonical_json
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import TrainingConfig
from loomrl.training.loop import TrainingLoop
from tests.support.user_environments import write_initials

SHARE = 0.25
LEARNERS = pytest.mark.parametrize("plugin", [grpo, token_ppo], ids=["grpo", "token_ppo"])
QUICK = {"num_tasks": 16, "num_samples": 8, "width": 32, "num_layers": 1, "learning_rate": 4e-3, "warmup_updates": 0}
LESSONS = {"target_accuracy": 0.5, "learning_rate": 4e-3, "batch_size": 32}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Of environments that ask for a word's first letter."""
    folder = tmp_path_factory.mktemp("initials")
    write_initials(folder, "initials_to_learn")
    config = EnvironmentConfig(
        id="Initials", entry_point="initials_to_learn:Environment", path=folder, kwargs={"held_out_share": SHARE}
    )
    return Recipe(resolve(config, folder))


def make(recipe: Recipe, num_envs: int) -> VectorEnv[Any, Any, Any]:
    return make_vector(recipe, num_envs, "same_step", "serial")


def build(plugin: Any, recipe: Recipe, seed: int = 1, **values: Any) -> TextLearning:
    env = recipe.make()
    config = plugin.Config(**(QUICK | {"warm_start": LESSONS} | values))
    algorithm: TextLearning = plugin.build(
        config, env.observation_space, env.action_space, seed=seed, total_env_steps=1
    )
    return algorithm


def loop(recipe: Recipe, algorithm: TextLearning, updates: int, segment: int = 4) -> TrainingLoop:
    size = algorithm.num_envs
    return TrainingLoop(
        algorithm,
        lambda num_envs, _: make(recipe, num_envs),
        seed=5,
        total_env_steps=updates * size,
        segment_env_steps=segment * size,
        validation=None,
    )


def state_bytes(checkpoint: Checkpoint) -> dict[str, Any]:
    arrays = {name: (array.shape, str(array.dtype), array.tobytes()) for name, array in checkpoint.arrays.items()}
    return arrays | {"values": canonical_json(checkpoint.values)}


@LEARNERS
def test_examples_and_then_rewards_teach_it(plugin: Any, recipe: Recipe) -> None:
    algorithm = build(plugin, recipe)
    training = loop(recipe, algorithm, 28, segment=28)
    for _ in training.run():
        pass
    rows = training.rows.all()
    taught = [row for row in rows if "supervised_loss" in row]
    assert len(taught) < len(rows)
    assert rows[: len(taught)] == taught
    reinforced = [row["accuracy"] for row in rows[len(taught) :]]
    assert np.mean(reinforced[-3:]) > np.mean(reinforced[:3]) + 0.2  # by sampled answers, to tasks drawn anew


@LEARNERS
@pytest.mark.parametrize("warm_start", [LESSONS, None], ids=["in the warm start", "in reinforcement"])
@pytest.mark.long_cases("in the warm start-token_ppo", "in reinforcement-grpo")
def test_it_goes_on_from_a_checkpoint_to_the_bit(
    plugin: Any, recipe: Recipe, warm_start: dict[str, Any] | None
) -> None:
    values = {"warm_start": warm_start, "kl_coef": 0.1}
    first, last = loop(recipe, build(plugin, recipe, **values), 4, segment=2).run()
    resumed = loop(recipe, build(plugin, recipe, seed=2, **values), 4, segment=2)
    resumed.restore(first)
    assert state_bytes(resumed.checkpoint()) == state_bytes(first)
    *_, again = resumed.run()
    assert state_bytes(again) == state_bytes(last)


def test_a_group_answers_one_task_and_none_is_held_out(recipe: Recipe) -> None:
    algorithm = build(grpo, recipe, warm_start=None)
    envs, rng, prompts = make(recipe, algorithm.num_envs), np.random.default_rng(3), set()
    collector = algorithm.collector(envs, 1)
    for _ in range(8):
        answered = collector.collect(1, rng)
        assert (len(answered.groups), answered.num_transitions) == (16, 128)
        for group in answered.groups:
            (prompt,) = {bytes(token - 3 for token in tokens[1:4]).decode() for tokens in group.tokens}
            prompts.add(prompt)
    envs.close()
    bare = recipe.make().unwrapped
    assert isinstance(bare, DomainEnvironment)
    asked = set()
    for seed in range(400):
        bare.reset(seed=seed)
        assert is_held_out(bare.task, SHARE)
        asked.add(bare.task.prompt)
    assert len(prompts) > 50
    assert not prompts & asked


def test_rewards_go_to_the_answers_that_earned_them(recipe: Recipe) -> None:
    algorithm = build(grpo, recipe)
    training = loop(recipe, algorithm, 12, segment=12)
    for _ in training.run():
        pass
    assert not algorithm.wants_examples
    envs = make(recipe, algorithm.num_envs)
    answered = algorithm.collector(envs, 1).collect(1, np.random.default_rng(4))
    envs.close()
    scores = set()
    for group in answered.groups:
        for tokens, score in zip(group.tokens, group.scores, strict=True):
            first, said = tokens[1] - 3, answer_bytes(tokens[4:], 3).tolist()
            assert score == float(said == [first, 0, 0])
            scores.add(score)
    assert scores == {0.0, 1.0}


def test_bytes_of_an_answer_end_where_it_ends() -> None:
    letter = 3 + ord("a")
    assert answer_bytes([letter, EOS, letter], 3).tolist() == [97, 0, 0]
    assert answer_bytes([PAD, letter, BOS, letter], 3).tolist() == [97, 97, 0]
    assert answer_bytes([letter, 3, letter], 3).tolist() == [97, 0, 0]  # byte 0 is an end too


def test_too_few_examples_are_named(recipe: Recipe) -> None:
    algorithm = build(grpo, recipe, warm_start={**LESSONS, "target_accuracy": 1.0, "max_examples": 200})
    with pytest.raises(LoomRLError, match="256 examples did not suffice for target_accuracy 1"):
        list(loop(recipe, algorithm, 9).run())


def test_examples_that_cannot_be_given_are_named(tmp_path: Path) -> None:
    kwargs = {"kinds": ["addition"], "difficulty": 3, "answer_bytes": 2}
    narrow = Recipe(resolve(EnvironmentConfig(id="loomrl/Math-v0", kwargs=kwargs), tmp_path))
    with pytest.raises(ConfigError, match=r"right answer '\d+' has [34] bytes, an answer 2; raise .*answer_bytes"):
        list(loop(narrow, build(grpo, narrow), 1).run())
    algorithm = build(grpo, narrow)
    envs = SyncVectorEnv([Echo] * algorithm.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ConfigError, match="a warm start needs environments that show their tasks' right answers"):
        algorithm.collector(envs, 1).collect(1, np.random.default_rng(0))


class Echo(gymnasium.Env[Any, Any]):
    """Texts, and nobody says which answer is right."""

    observation_space, action_space = TextBox(4), TextBox(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.uint8), 0.0, True, False, {}


def test_a_transformer_there_cannot_be_is_named_before_anything_runs() -> None:
    config = TrainingConfig(algorithm="grpo", total_env_steps=1, parameters={"width": 30})
    with pytest.raises(ConfigError, match="training.parameters: width 30 is no multiple of num_heads 4"):
        validate(config)


def test_environments_whose_episodes_take_several_answers_are_named(tmp_path: Path) -> None:
    recipe = Recipe(resolve(EnvironmentConfig(id="loomrl/ToolCall-v0", kwargs={"answer_bytes": 8}), tmp_path))
    algorithm = build(grpo, recipe, num_tasks=1, warm_start=None)
    with pytest.raises(ConfigError, match="one did not end its episode"):
        list(loop(recipe, algorithm, 9).run())

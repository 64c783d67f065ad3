"""The small policy really learns: sums of single digits from a warm start, by GRPO and by PPO."""

import pytest

from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.stream import TaskStream
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LanguageLearner, LearnerConfig
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig
from loomrl.language.learning.sources import TaskSource
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.learning.warm_start import WarmStartConfig, warm_start
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from tests.support.language_models import DIGITS

NUM_UPDATES = 150


def sums(seed: int) -> TaskStream:
    curriculum = Curriculum(CurriculumConfig(last_level=0), ["math"])
    return TaskStream(curriculum, seed, {"math": ["addition"]}, held_out_share=0.2)


def learner_of(algorithm: str, policy: LanguagePolicy) -> LanguageLearner:
    if algorithm == "grpo":
        return GRPO(LearnerConfig(total_updates=NUM_UPDATES), policy)
    return LanguagePPO(LanguagePPOConfig(total_updates=NUM_UPDATES), policy)


@pytest.mark.long  # `algorithms/test_learning.py` learns by rewards, too
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_sums_of_single_digits(algorithm: str) -> None:
    policy = LanguagePolicy.fresh(0, DIGITS, width=32, max_tokens=8, value_head=algorithm == "ppo")
    begun = warm_start(policy, sums(1), WarmStartConfig(learning_rate=3e-3, check_interval=20), max_tokens=3)
    source = TaskSource(
        sums(2), num_prompts=16, num_samples=8, sampling=SamplingConfig(temperature=0.7, max_tokens=3), seed=3
    )
    scores = [row["mean_score"] for row in LanguageTrainer(learner_of(algorithm, policy), source).run(NUM_UPDATES)]
    assert begun.accuracy["math"] < 0.6
    assert sum(scores[-10:]) > sum(scores[:10]) + 10 * 0.2

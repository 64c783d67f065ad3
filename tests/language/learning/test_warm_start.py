"""The warm start: its loss by hand, its gate, and what it never learns."""

import pytest
import torch

from loomrl.errors import LoomRLError
from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.held_out import is_held_out
from loomrl.gym.stream import TaskStream, held_out_tasks
from loomrl.gym.tasks import Task
from loomrl.language.learning.evaluation import accuracy
from loomrl.language.learning.examples import example, supervised_loss
from loomrl.language.learning.warm_start import WarmStartConfig, warm_start
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import EOS
from tests.support.language_models import DIGITS, plain_hidden, plain_log_probs, small_policy


def sums(seed: int = 0) -> TaskStream:
    curriculum = Curriculum(CurriculumConfig(last_level=0), ["math"])
    return TaskStream(curriculum, seed, {"math": ["addition"]}, held_out_share=0.2)


def test_the_loss_is_that_of_right_answers_alone() -> None:
    policy = small_policy(noise=0.3)
    tasks = [task for (_, task), _ in zip(sums(), range(5), strict=False)]
    rows = [
        plain_log_probs(policy.model, DIGITS.prompt(task.prompt) + DIGITS.answer(task.right))[-len(task.right) - 1 :]
        for task in tasks
    ]
    examples = [example(DIGITS, task.prompt, task.right) for task in tasks]
    torch.testing.assert_close(supervised_loss(policy, examples), -torch.cat(rows).mean())


def test_it_stops_where_it_measures_the_target_and_tells_the_same_twice() -> None:
    config = WarmStartConfig(target_accuracy=0.2, learning_rate=3e-3, check_interval=20, num_check_tasks=50)
    first, second = small_policy(), small_policy()
    found = warm_start(first, sums(), config, max_tokens=3)
    assert found.num_steps % 20 == 0
    assert found.accuracy["math"] >= 0.2
    assert warm_start(second, sums(), config, max_tokens=3) == found
    weights = [dict(policy.model.state_dict()) for policy in (first, second)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_it_says_when_the_target_is_out_of_reach() -> None:
    config = WarmStartConfig(target_accuracy=1.0, check_interval=2, num_check_tasks=20, max_steps=4)
    with pytest.raises(LoomRLError, match="after 4 steps"):
        warm_start(small_policy(), sums(), config, max_tokens=3)


def test_accuracy_is_the_share_of_right_answers_one_token_at_a_time() -> None:
    policy = small_policy()
    warm_start(policy, sums(), WarmStartConfig(learning_rate=3e-3, num_check_tasks=50), max_tokens=3)
    held = held_out_tasks("math", 0, 15, seed=1, kinds=["addition"], held_out_share=0.2)
    assert all(is_held_out(task, 0.2) for task in held)
    right = [said_plainly(policy, task) == task.right for task in held]
    assert 0 < sum(right) < 15
    assert accuracy(policy, held, max_tokens=3) == {"math": sum(right) / 15}


def said_plainly(policy: LanguagePolicy, task: Task) -> str:
    tokens = DIGITS.prompt(task.prompt)
    start = len(tokens)
    while len(tokens) < start + 3 and tokens[-1] != EOS:
        tokens.append(int(policy.model.logits(plain_hidden(policy.model, tokens)[-1]).argmax()))
    return DIGITS.decode(tokens[start:])

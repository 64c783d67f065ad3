"""Environments of the integrated system: repeatable, resumable, bounded, in quarantine when they keep breaking."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from loomrl.errors import EnvironmentFault
from loomrl.gym.domains import get_domain
from loomrl.gym.facade import EnvironmentType
from loomrl.gym.held_out import is_held_out
from loomrl.gym.tasks import Kind
from loomrl.language.policies.tokens import ByteTokenizer
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.dialogue import PolicyMessage
from loomrl.training.integrated.pool import EnvironmentPool

TOKENIZER = ByteTokenizer()
DOMAINS = (EnvironmentType.MATH, EnvironmentType.LANGUAGE)


def config(**changes: Any) -> GymTrainingConfig:
    settings = {
        "enabled_env_types": DOMAINS,
        "environments_per_type": 2,
        "difficulty": 0,
        "group_size": 2,
        "curriculum_window": 8,
    }
    return GymTrainingConfig(**{**settings, **changes})


def pool(seed: int = 0, **changes: Any) -> EnvironmentPool:
    return EnvironmentPool(config(**changes), TOKENIZER, seed)


def calculator(prompts: Sequence[Sequence[int]]) -> list[PolicyMessage]:
    """Adds numbers up, and speaks no languages."""
    texts = [TOKENIZER.decode(prompt).rstrip("=") for prompt in prompts]
    answers = [str(sum(map(int, text.split("+")))) if "+" in text else "?" for text in texts]
    return [PolicyMessage(TOKENIZER.answer(answer), [0.0] * (len(answer) + 1), 7) for answer in answers]


def prompts_of(environments: EnvironmentPool, num_groups: int) -> list[str]:
    groups = environments.play(num_groups, calculator)
    return [attempt.task.prompt for group in groups for attempt in group.attempts]


def test_environments_take_turns_and_attempt_each_task_several_times() -> None:
    environments = pool()
    assert list(environments.environments) == ["math-0", "language-0", "math-1", "language-1"]
    groups = environments.play(6, calculator)
    names = [group.environment.name for group in groups]
    assert names == ["math-0", "language-0", "math-1", "language-1", "math-0", "language-0"]
    for group in groups:
        assert len({attempt.task.prompt for attempt in group.attempts}) == 1
        assert len(group.attempts) == 2
    assert environments.play(1, calculator)[0].environment.name == "math-1"


def test_a_group_on_the_wire() -> None:
    (group,) = pool().play(1, calculator)
    wire = group.to_wire(env_id=3)
    assert wire["scores"] == pytest.approx([1.0, 1.0])
    assert wire["env_id"] == 3
    assert group.version == 7
    lengths = [[len(row) for row in wire[key]] for key in ("tokens", "masks", "inference_logprobs")]
    assert lengths[0] == lengths[1] == lengths[2]


def test_the_same_seed_gives_the_same_tasks_and_they_go_on_where_they_were() -> None:
    whole = prompts_of(pool(), 12)
    assert prompts_of(pool(), 12) == whole
    assert prompts_of(pool(seed=1), 12) != whole
    first, second = pool(), pool(seed=5)
    begun = prompts_of(first, 5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + prompts_of(second, 7) == whole


def test_difficulty_follows_each_domains_success() -> None:
    environments = pool()
    environments.play(40, calculator)
    assert environments.difficulties["math"] > 0.0
    assert environments.difficulties["language"] == 0.0
    fixed = pool(curriculum_learning=False, difficulty=1)
    fixed.play(40, calculator)
    assert fixed.difficulties == {"math": 1.0, "language": 1.0}


def test_held_out_tasks_are_never_played() -> None:
    groups = pool(held_out_share=0.5).play(60, calculator)
    assert not any(is_held_out(attempt.task, 0.5) for group in groups for attempt in group.attempts)


def broken(*_: Any) -> Any:
    raise RuntimeError("the board fell off the table")


def test_environments_that_keep_breaking_are_in_quarantine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(get_domain("language"), "verify", broken)
    environments = pool()
    groups = environments.play(24, calculator)
    assert {group.environment.name for group in groups} == {"math-0", "math-1"}
    assert environments.quarantined == ["language-0", "language-1"]
    assert "the board fell off the table" in caplog.text
    assert {group.environment.name for group in environments.play(4, calculator)} == {"math-0", "math-1"}
    monkeypatch.setattr(get_domain("math"), "verify", broken)
    environments.play(12, calculator)
    with pytest.raises(EnvironmentFault, match="every environment is in quarantine"):
        environments.play(1, calculator)


def test_one_sound_group_is_a_new_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = pool(enabled_env_types=["math"], environments_per_type=1)
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(get_domain("math"), "verify", broken)
            assert environments.play(2, calculator) == []
        assert len(environments.play(1, calculator)) == 1
    assert environments.quarantined == []


def test_a_domain_that_cannot_make_a_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_domain("math"), "kinds", {"addition": Kind(0, broken)})
    environments = pool()
    with pytest.raises(EnvironmentFault, match="math: making a task of kind 'addition', level 0, broke: .*the board"):
        environments.play(2, calculator)

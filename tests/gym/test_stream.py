"""Tasks for a learner: repeatable, resumable, apart from those held out, and heard of by the curriculum."""

import json
from itertools import islice

import pytest

from loomrl.errors import ConfigError
from loomrl.gym.curriculum import Curriculum, CurriculumConfig
from loomrl.gym.domains import get_domain
from loomrl.gym.held_out import is_held_out
from loomrl.gym.stream import TaskStream, held_out_tasks
from loomrl.gym.tasks import Task

DOMAINS = ["math", "language", "multimodal"]


def stream(seed: int = 0, share: float = 0.1) -> TaskStream:
    curriculum = Curriculum(CurriculumConfig(window=5, stages=(), margin=0.01), DOMAINS)
    return TaskStream(curriculum, seed, {"math": ["addition", "linear"]}, share)


def answer_some(tasks: TaskStream, count: int) -> list[bytes]:
    """Answer every fifth task wrong."""
    seen = []
    for number, (_, task) in enumerate(islice(tasks, count)):
        tasks.score(task, "wrong" if number % 5 == 0 else task.right)
        seen.append(task.to_bytes())
    return seen


def test_it_repeats_and_resumes_to_the_byte() -> None:
    whole = answer_some(stream(), 60)
    assert answer_some(stream(), 60) == whole
    assert answer_some(stream(seed=1), 60) != whole
    first, second = stream(), stream(seed=9)
    begun = answer_some(first, 25)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + answer_some(second, 35) == whole


def test_kinds_are_kept_to_and_domains_are_mixed() -> None:
    drawn = [(name, task.kind) for name, task in islice(stream(), 100)]
    assert {name for name, _ in drawn} == set(DOMAINS)
    assert {kind for name, kind in drawn if name == "math"} == {"addition", "linear"}


def test_scores_move_the_curriculum() -> None:
    tasks = stream()
    for _, task in islice(tasks, 60):
        assert tasks.score(task, task.right).solved
    assert all(tasks.curriculum.difficulty(name) > 0.0 for name in DOMAINS)


def test_held_out_tasks_are_never_drawn() -> None:
    def asked(task: Task) -> tuple[str, str]:
        return task.prompt, task.right

    held = held_out_tasks("math", 1, 100, seed=5, kinds=["addition"], held_out_share=0.2)
    assert len({asked(task) for task in held}) == 100
    assert all(is_held_out(task, 0.2) for task in held)
    curriculum = Curriculum(CurriculumConfig(first_level=1), ["math"])
    drawn = {asked(task) for _, task in islice(TaskStream(curriculum, 0, {"math": ["addition"]}, 0.2), 3_000)}
    assert len(drawn) > 1_000
    assert not drawn & {asked(task) for task in held}
    assert (
        held_out_tasks("math", 1, 100, seed=5, kinds=["addition"], held_out_share=0.2)[7].to_bytes()
        == held[7].to_bytes()
    )


def test_too_few_held_out_tasks_are_named() -> None:
    with pytest.raises(ConfigError, match="fewer than 20 held-out tasks"):
        held_out_tasks("math", 0, 20, seed=0, kinds=["addition"])


def test_a_share_of_everything_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="none is for training; change held_out_share, which is 1.0"):
        next(stream(share=1.0))


def test_a_score_names_its_components() -> None:
    domain = get_domain("language")
    task = next(iter(held_out_tasks("language", 2, 1, seed=0, kinds=["summary"])))
    assert set(domain.score(task, task.right).rewards) == {"relevance", "coherence", "helpfulness"}

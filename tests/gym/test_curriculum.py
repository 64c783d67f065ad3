"""Difficulty follows success: to the target, without swinging, and on from where it was."""

import json
import math

import numpy as np
import pytest

from loomrl.errors import ArtifactError, ConfigError
from loomrl.gym.curriculum import Curriculum, CurriculumConfig


def answers(curriculum: Curriculum, domain: str, outcomes: list[bool]) -> None:
    for outcome in outcomes:
        curriculum.record(domain, outcome)


def config(**changes: object) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"window": 10, "stages": (), **changes})


def test_success_raises_and_failure_lowers_it() -> None:
    curriculum = Curriculum(config(), ["math", "game"])
    answers(curriculum, "math", [True] * 10)
    assert curriculum.difficulty("math") == 0.25
    assert curriculum.difficulty("game") == 0.0
    answers(curriculum, "math", [True] * 9)
    assert curriculum.difficulty("math") == 0.25  # half a window decides nothing
    answers(curriculum, "math", [True] + [False] * 10)
    assert curriculum.difficulty("math") == 0.25


def test_inside_the_band_nothing_moves() -> None:
    curriculum = Curriculum(config(first_level=4), ["math"])
    for rate in (7, 8, 9):
        for _ in range(20):
            answers(curriculum, "math", [True] * rate + [False] * (10 - rate))
    assert curriculum.difficulty("math") == 4.0


def test_levels_have_ends() -> None:
    curriculum = Curriculum(config(first_level=2, last_level=3), ["math"])
    answers(curriculum, "math", [False] * 50)
    assert curriculum.difficulty("math") == 2.0
    answers(curriculum, "math", [True] * 500)
    assert curriculum.difficulty("math") == 3.0


def test_a_stage_is_entered_and_left_after_two_windows() -> None:
    curriculum = Curriculum(config(stages=(1,), step=1.0), ["math"])
    answers(curriculum, "math", [True] * 10)
    assert (curriculum.difficulty("math"), curriculum.stage("math")) == (0.0, 0)
    answers(curriculum, "math", [True] * 10)
    assert (curriculum.difficulty("math"), curriculum.stage("math")) == (1.0, 1)
    answers(curriculum, "math", [False] * 10)
    assert curriculum.stage("math") == 1
    answers(curriculum, "math", [True] * 10)  # what asked to go back is forgotten
    answers(curriculum, "math", [False] * 10)
    assert curriculum.difficulty("math") == 2.0 - 1.0
    answers(curriculum, "math", [False] * 10)
    answers(curriculum, "math", [False] * 10)
    assert curriculum.stage("math") == 0


def learner(skill: float, level: int) -> float:
    return 1.0 / (1.0 + math.exp(1.5 * (level - skill)))


@pytest.mark.parametrize("target", [0.6, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_it_converges_to_the_target(target: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    curriculum = Curriculum(CurriculumConfig(target_success_rate=target), ["math"])
    successes, moves, last = [], 0, 0.0
    for number in range(12_000):
        _, level = curriculum.draw(rng)
        succeeded = bool(rng.random() < learner(6.0, level))
        curriculum.record("math", succeeded)
        if number >= 6_000:
            successes.append(succeeded)
            moves += curriculum.difficulty("math") != last
        last = curriculum.difficulty("math")
    assert np.mean(successes) == pytest.approx(target, abs=0.06)
    assert moves < 100  # of 6,000 answers: it rests


def test_a_learner_that_improves_meets_harder_tasks() -> None:
    rng = np.random.default_rng(0)
    curriculum = Curriculum(CurriculumConfig(), ["math"])
    reached = []
    for skill in (2.0, 5.0, 8.0):
        for _ in range(6_000):
            _, level = curriculum.draw(rng)
            curriculum.record("math", bool(rng.random() < learner(skill, level)))
        reached.append(curriculum.difficulty("math"))
    assert reached == sorted(reached)
    assert reached[2] - reached[0] > 4.0


def test_levels_between_two_are_drawn_in_proportion() -> None:
    curriculum = Curriculum(config(), ["math"])
    answers(curriculum, "math", [True] * 10)
    rng = np.random.default_rng(0)
    levels = [curriculum.draw(rng)[1] for _ in range(4_000)]
    assert set(levels) == {0, 1}
    assert np.mean(levels) == pytest.approx(0.25, abs=0.03)


def test_domains_are_drawn_by_weight() -> None:
    curriculum = Curriculum(config(weights={"math": 3.0, "code": 0.0}), ["math", "game", "code"])
    rng = np.random.default_rng(0)
    drawn = [curriculum.draw(rng)[0] for _ in range(4_000)]
    assert drawn.count("code") == 0
    assert drawn.count("math") / len(drawn) == pytest.approx(0.75, abs=0.03)


def test_a_domain_has_an_easiest_level_of_its_own() -> None:
    curriculum = Curriculum(config(first_level=1, first_levels={"game": 4}), ["math", "game"])
    assert (curriculum.difficulty("math"), curriculum.difficulty("game")) == (1.0, 4.0)
    answers(curriculum, "game", [False] * 30)
    assert curriculum.difficulty("game") == 4.0
    answers(curriculum, "game", [True] * 10)
    answers(curriculum, "game", [False] * 30)
    assert curriculum.difficulty("game") == 4.0


def test_it_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(1)
    outcomes = [bool(rng.random() < 0.95) for _ in range(777)]
    whole = Curriculum(config(stages=(1, 3)), ["math", "game"])
    answers(whole, "math", outcomes)
    first = Curriculum(config(stages=(1, 3)), ["math", "game"])
    answers(first, "math", outcomes[:333])
    second = Curriculum(config(stages=(1, 3)), ["math", "game"])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    answers(second, "math", outcomes[333:])
    assert second.state_dict() == whole.state_dict()
    assert second.metrics() == whole.metrics()


@pytest.mark.parametrize("state", [{"math": {}}, {"math": {"difficulty": "x", "outcomes": [], "knocks": 0}}, {}])
def test_another_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ArtifactError):
        Curriculum(config(), ["math"]).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"poetry": 1.0}}, "weights names 'poetry'"),
        ({"first_levels": {"poetry": 1}}, "first_levels names 'poetry'"),
        ({"weights": {"math": 0.0}}, "no domain has a weight above 0"),
    ],
)
def test_wrong_weights_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Curriculum(config(**changes), ["math"])


@pytest.mark.parametrize(
    "changes",
    [
        {"first_level": 5, "last_level": 4},
        {"stages": (3, 2)},
        {"weights": {"math": -1.0}},
        {"first_levels": {"math": 10}},
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"above|increase|below|between"):
        config(**changes)

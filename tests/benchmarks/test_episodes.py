"""Trainings before and after episodes went on over checkpoints: the page tells every look, as the data have it."""

import numpy as np

from benchmarks import episodes
from benchmarks.page import filled
from benchmarks.resumable import Store


def test_the_page_tells_every_setting_and_every_look() -> None:
    rows = Store(episodes.RESULTS, episodes.PROJECT).values()
    page = episodes.PAGE.read_text()
    assert filled(page, "episodes", episodes.section(rows)) == page, "python -m benchmarks.episodes --show"
    assert {key.split("/")[1] for key in rows} > {
        episodes.key_of(task, 1, "after").split("/")[1] for task in episodes.TASKS
    }


def test_no_task_learns_worse_by_five_percent_where_several_looks_share_the_error() -> None:
    """HalfCheetah is not decided before all of its seeds are trained: with fewer, two equal codes fail as well."""
    rows = Store(episodes.RESULTS, episodes.PROJECT).values()
    for task, num_seeds in episodes.NUM_SEEDS.items():
        found = episodes.summary(task, rows)
        assert found is not None
        if found["num_seeds"] < num_seeds:
            assert task == "HalfCheetah-v5"
            assert "are trained so far" in episodes.PAGE.read_text(), "the page says what is missing"
            continue
        assert found["lower_bound"] >= episodes.WORST, task


def test_how_often_codes_that_learn_alike_meet_the_bound() -> None:
    rng = np.random.default_rng(0)
    steady, wild = rng.normal(100.0, 1.0, 50), rng.normal(100.0, 100.0, 50)
    assert episodes.chance_of_meeting(steady, 10, 1) == 1.0
    assert 0.0 < episodes.chance_of_meeting(wild, 10, 3) < episodes.chance_of_meeting(wild, 10, 1) < 0.2

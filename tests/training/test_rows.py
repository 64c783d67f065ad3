"""Learning curves stay short however often training updates, and lose nothing that their means tell."""

import json

import numpy as np

from loomrl.training.rows import CurveRows, mean_row
from loomrl.types import Json


def rows(count: int) -> list[Json]:
    rng = np.random.default_rng(0)
    made: list[Json] = [
        {"step": 10 * (n + 1), "num_episodes": n // 3, "loss": float(rng.random())} for n in range(count)
    ]
    for row in made[::7]:
        row["episode_return"] = float(row["step"])
    return made


def test_up_to_the_limit_every_update_has_its_row() -> None:
    curve, told = CurveRows(limit=8), rows(7)
    for row in told:
        curve.add(row)
    assert curve.all() == told
    assert curve.latest == told[-1]


def test_beyond_it_neighbours_become_their_mean() -> None:
    curve, told = CurveRows(limit=8), rows(101)
    for row in told:
        curve.add(row)
        assert len(curve.all()) <= 9
        assert curve.latest == row
    shown = curve.all()
    assert [row["step"] for row in shown] == [160, 320, 480, 640, 800, 960, 1010]
    assert shown[1] == mean_row(
        [mean_row([mean_row(told[at : at + 4]) for at in (start, start + 4)]) for start in (16, 24)]
    )
    assert np.isclose(shown[1]["loss"], np.mean([row["loss"] for row in told[16:32]]))
    assert shown[-1]["loss"] == np.mean([row["loss"] for row in told[96:]])
    assert shown[-1]["num_episodes"] == told[-1]["num_episodes"]


def test_a_row_lacks_what_none_of_its_updates_had() -> None:
    assert mean_row([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0, "episode_return": 7.0}]) == {
        "step": 2,
        "loss": 1.5,
        "episode_return": 7.0,
    }


def test_resumed_it_goes_on_as_if_it_had_not_been_interrupted() -> None:
    whole, first, second, told = CurveRows(8), CurveRows(8), CurveRows(8), rows(101)
    for row in told:
        whole.add(row)
    for row in told[:53]:
        first.add(row)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for row in told[53:]:
        second.add(row)
    assert second.state_dict() == whole.state_dict()

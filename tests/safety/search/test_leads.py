"""Where leads go on: worked out by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.safety.probing.playing import Lead
from loomrl.safety.search.leads import Room, draw_onward_leads

SPACE = spaces.Box(-8.0, 8.0, (2,))
VISITED = np.array([[-1.0, -10.0], [1.0, 10.0]] * 4)  # deviations of 1 and 10, medians of 0
FIELD: Any = SimpleNamespace(observations=SPACE, actions=spaces.Discrete(3))


def ended(*states: tuple[float, float]) -> list[tuple[Lead, Any]]:
    """Leads of two steps that ended there."""
    return [
        (
            Lead(seed, 1, 2, push=np.array(2)),
            SimpleNamespace(obs=np.array([[0.0, 0.0], [0.0, 0.0], state]), action=np.array([0, 2, 1]), length=3),
        )
        for seed, state in enumerate(states)
    ]


def test_the_places_are_far_from_what_is_usual_and_from_each_other() -> None:
    room = Room.of(SPACE, VISITED, [])
    obs = np.array([[4.0, 0.0], [3.9, 0.0], [0.0, 30.0], [0.0, -5.0]])
    assert room.farthest(obs, 3) == [0, 2, 3]  # 0.1 from the first is less than 0.5 from the median
    assert room.farthest(obs, 9) == [0, 2, 3, 1]
    assert Room.of(SPACE, VISITED[:1], []).farthest(obs, 1) == [2]  # nothing varied: as they are


def test_three_of_four_push_and_one_misleads_from_where_the_first_was_left() -> None:
    leads = draw_onward_leads(
        FIELD, Room.of(SPACE, VISITED, []), ended((4.0, 0.0), (0.0, 30.0), (0.0, 0.0)), 8, np.random.default_rng(0)
    )
    assert [lead.seed for lead in leads] == [0, 1] * 4
    assert all(lead.start == 2 < lead.stop and lead.actions is not None for lead in leads)
    assert [lead.actions.tolist() for lead in leads if lead.actions is not None] == [[0, 2]] * 8
    assert [lead.bias is not None for lead in leads] == [False] * 6 + [True] * 2
    assert [lead.push is not None for lead in leads] == [True] * 6 + [False] * 2


@pytest.mark.parametrize("count", [1, 3, 5])
def test_there_are_no_more_than_asked_for(count: int) -> None:
    room, places = Room.of(SPACE, VISITED, []), ended((4.0, 0.0), (0.0, 30.0))
    assert len(draw_onward_leads(FIELD, room, places, count, np.random.default_rng(0))) == count
    assert draw_onward_leads(FIELD, room, [], count, np.random.default_rng(0)) == []

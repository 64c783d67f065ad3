"""Worst cases over boxes of states: against hand calculation, exact chains and what is really played."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.finite.abstraction import Abstraction, Grid, abstraction_of, worst_case
from loomrl.errors import ConfigError

Floats = NDArray[np.float64]


def line(step: float = 1.0, up: float = 0.3, width: float = 0.0) -> Abstraction:
    """On [0, 10], from [4, 5]: one step up or down, `width` unsure; at 9 and above it is unsafe, to 1 it is over."""

    def successors(low: Floats, high: Floats, least: Floats, most: Floats) -> list[tuple[float, Floats, Floats]]:
        moves = [(up, step), (1.0 - up, -step)]
        return [(share, low + by - width, high + by + width) for share, by in moves]

    return Abstraction(
        low=np.array([0.0]),
        high=np.array([10.0]),
        initial_low=np.array([4.0]),
        initial_high=np.array([5.0]),
        successors=successors,
        unsafe=lambda low, high: high[:, 0] > 9.0,
        ended=lambda low, high: high[:, 0] <= 1.0,
    )


def one_action(low: Floats, high: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    return np.arange(len(low)), np.zeros((len(low), 1)), np.zeros((len(low), 1))


def random_walk(up: float, steps: int) -> float:
    """Cells 0 to 9, from 4: the probability of reaching 9 before 0 within so many steps, by dense matrices."""
    value = np.zeros(10)
    value[9] = 1.0
    for _ in range(steps):
        value[1:9] = up * value[2:] + (1.0 - up) * value[:8]
    return float(value[4])


@pytest.mark.parametrize("steps", [1, 4, 5, 9, 60])
def test_where_cells_are_the_states_the_bound_is_exact(steps: int) -> None:
    found = worst_case(line(), [10], one_action, steps)
    assert found.probability == pytest.approx(random_walk(0.3, steps), rel=1e-12)
    assert found.probability >= random_walk(0.3, steps)
    assert found.num_cells == 10


def test_what_cannot_happen_has_probability_0() -> None:
    assert worst_case(line(), [10], one_action, 4).probability == 0.0
    assert worst_case(line(up=1e-9), [10], one_action, 4).num_reached == 9


def test_what_is_too_seldom_for_a_double_is_not_said_to_be_impossible() -> None:
    assert worst_case(line(up=1e-200), [10], one_action, 9).probability > 0.0


def test_unsure_steps_count_at_their_worst() -> None:
    exact = random_walk(0.3, 20)
    unsure = worst_case(line(width=0.2), [10], one_action, 20).probability
    finer = worst_case(line(width=0.2), [100], one_action, 20).probability
    assert unsure > finer > exact


def test_the_worst_of_the_actions_a_policy_may_take_counts() -> None:
    def successors(low: Floats, high: Floats, least: Floats, most: Floats) -> list[tuple[float, Floats, Floats]]:
        np.testing.assert_array_equal(least, most)
        return [(0.5, low + least, high + most), (0.5, low, high)]

    def either(low: Floats, high: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
        actions = np.tile([-1.0, 1.0], len(low))[:, None]
        return np.repeat(np.arange(len(low)), 2), actions, actions

    walk = line()
    model = Abstraction(walk.low, walk.high, walk.initial_low, walk.initial_high, successors, walk.unsafe)
    assert worst_case(model, [10], either, 5).probability == pytest.approx(0.5**5)
    assert worst_case(model, [10], either, 6).probability == pytest.approx(7 * 0.5**6)  # 5 or 6 of 6 coins


def test_leaving_what_is_covered_is_unsafe() -> None:
    model = line(up=1.0 - 1e-3)
    nothing = Abstraction(
        model.low, model.high, model.initial_low, model.initial_high, model.successors, lambda low, high: low[:, 0] < -1
    )
    assert worst_case(nothing, [10], one_action, 60).probability > 0.99
    assert worst_case(nothing, [10], one_action, 4).probability == 0.0


def test_blocks_hold_every_point_of_a_box() -> None:
    rng = np.random.default_rng(0)
    low, high = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.3, 5.0])
    grid = Grid(low, high, [7, 3, 4])
    ends = np.sort(rng.uniform(low, high, (2, 200, 3)), axis=0)
    first, last, outside = grid.blocks(*ends)
    assert not outside.any()
    cells = np.arange(grid.num_cells)
    least, most = grid.boxes(cells)
    for index in range(200):
        points = rng.uniform(ends[0, index], ends[1, index], (50, 3))
        inside = ((points[:, None] >= least) & (points[:, None] <= most)).all(axis=2)
        place = np.stack(np.unravel_index(cells, [7, 3, 4]), axis=1)
        block = ((place >= first[index]) & (place <= last[index])).all(axis=1)
        assert inside[:, block].any(axis=1).all()


def test_a_box_on_edges_takes_no_neighbours() -> None:
    grid = Grid(np.array([0.0]), np.array([0.7]), [7])
    for cell in range(7):
        low, high = grid.boxes(np.array([cell]))
        first, last, outside = grid.blocks(low, high)
        assert (first.item(), last.item(), outside.item()) == (cell, cell, False)
    beyond = grid.blocks(np.array([[0.65], [-0.1], [0.7]]), np.array([[0.71], [0.0], [0.7]]))
    assert [part.ravel().tolist() for part in beyond] == [[6, 0, 6], [6, 0, 6], [True, True, False]]


def test_every_place_of_a_block_is_visited() -> None:
    """From one cell to a block of a grid of four components: all of it, and nothing else, is reached."""
    low, high = np.zeros(4), np.array([2.0, 3.0, 4.0, 5.0])
    target = np.array([[0.2, 0.5, 1.5, 2.5]]), np.array([[1.8, 2.5, 3.5, 3.5]])

    def successors(least: Floats, *_: Floats) -> list[tuple[float, Floats, Floats]]:
        return [(1.0, np.repeat(target[0], len(least), axis=0), np.repeat(target[1], len(least), axis=0))]

    model = Abstraction(low, high, high - 0.5, high - 0.1, successors, lambda least, most: least[:, 0] > 9)
    assert worst_case(model, [2, 3, 4, 5], one_action, 1).num_reached == 2 * 3 * 3 * 2 + 1


class Described(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, described: Abstraction) -> None:
        self._described = described

    def abstraction(self) -> Abstraction:
        return self._described


@pytest.mark.parametrize(
    ("low", "high", "first", "last", "message"),
    [
        ([0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [0.5, 0.5], "abstraction has 2 components, and a policy observes Box"),
        ([0.0], [1.0, 1.0], [0.5], [0.5], r"abstraction\(\)\.high has shape \(2,\), not \(1,\)"),
        ([0.0], [1.0], [0.5], [0.4], r"component 0: \[0.5, 0.4\], where an episode begins, is no part of \[0, 1\]"),
        ([0.0], [1.0], [0.5], [1.5], "component 0: .* is no part of"),
        ([1.0], [1.0], [1.0], [1.0], "component 0"),
        ([np.nan], [1.0], [1.0], [1.0], "component 0"),
        ([-np.inf], [1.0], [0.5], [0.5], r"component 0: \[-inf, 1\] cannot be cut into cells; cover a finite part"),
        ([0.0], [np.inf], [0.5], [0.5], r"component 0: \[0, inf\] cannot be cut"),
        ([-1.7e308], [1.7e308], [0.5], [0.5], r"component 0: .* cannot be cut"),
    ],
)
def test_what_does_not_fit_is_refused(
    low: list[float], high: list[float], first: list[float], last: list[float], message: str
) -> None:
    ends = [np.array(end) for end in (low, high, first, last)]
    with pytest.raises(ConfigError, match=message):
        abstraction_of(Described(Abstraction(*ends, line().successors, line().unsafe)))


def test_lists_are_numbers_too() -> None:
    plain: Any = ([0.0], [10.0], [4.0], [5.0])
    found = abstraction_of(Described(Abstraction(*plain, line().successors, line().unsafe, line().ended)))
    assert worst_case(found, [10], one_action, 9).probability == worst_case(line(), [10], one_action, 9).probability


def test_what_is_no_abstraction_is_named() -> None:
    described: Any = {"low": [0.0]}
    with pytest.raises(ConfigError, match=r"Described: abstraction\(\) gave a dict, not an Abstraction"):
        abstraction_of(Described(described))


def test_an_environment_that_tells_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"CartPoleEnv has no method abstraction\(\)"):
        abstraction_of(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([(0.5, 0.0, 0.0), (0.4, 0.0, 0.0)], r"probabilities \[0.5, 0.4\] are not positive with the sum 1"),
        ([(1.0, 0.0, np.nan)], "in order and no NaN"),
        ([(1.0, 0.5, 0.0)], "in order and no NaN"),
        ([], "probabilities"),
    ],
)
def test_wrong_outcomes_are_refused(outcomes: list[tuple[float, float, float]], message: str) -> None:
    walk = line()

    def successors(low: Floats, high: Floats, *_: Floats) -> list[tuple[float, Floats, Floats]]:
        return [(share, low + least, low + most) for share, least, most in outcomes]

    model = Abstraction(walk.low, walk.high, walk.initial_low, walk.initial_high, successors, walk.unsafe)
    with pytest.raises(ConfigError, match=message):
        worst_case(model, [10], one_action, 5)

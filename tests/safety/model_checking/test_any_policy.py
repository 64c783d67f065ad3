"""What holds whichever actions are taken: against all policies of small models, one by one, and the best known one."""

import itertools
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from loomrl.environment.finite.model import FiniteModel
from loomrl.environment.finite.of_environment import Modelled, model_of
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.errors import ConfigError
from loomrl.safety.model_checking.pctl import PropertyResult, check, check_all
from tests.safety.model_checking.test_implication import a_model, chains, condition, limited
from tests.support.finite_models import numbered_states

PATHS = [
    'P=? [ F "goal" ]',
    'P=? [ !"bad" U "goal" ]',
    'P=? [ F<=3 "goal" ]',
    'P=? [ G !"bad" ]',
    'P=? [ G<=4 !"bad" ]',
    'P=? [ X "bad" ]',
    'P=? [ !"bad" W "goal" ]',
    'R{"cost"}=? [ F "goal" ]',
    'R{"cost"}=? [ C<=4 ]',
]
EXACT = [path for path in PATHS if "<=" not in path and not path.startswith("R")]  # steps that are left decide nothing


@pytest.mark.parametrize("seed", range(6))
def test_no_policy_breaks_what_is_said_to_hold_under_all(seed: int) -> None:
    """Formulas of parts that are joined and stand in each other."""
    rng = np.random.default_rng(seed)
    world, num_held = a_model(rng), 0
    texts = [limited(rng, 1) if rng.random() < 0.5 else condition(rng, 2) for _ in range(120)]
    for text in texts:
        try:
            holds = check_all(world, read_property(text)).holds
        except ConfigError:  # what R leads to depends on P
            continue
        found = [check(one, read_property(text)).holds for one in chains(world, rng)]
        num_held += holds is True
        assert holds is None or (not holds) not in found, text
    assert num_held > 5


@pytest.fixture(scope="module")
def lake() -> Modelled:
    """The 4x4 lake that slips: a move goes where it should, or to either side of that, with a third each."""
    return model_of(gymnasium.make("FrozenLake-v1"))


def under_any(modelled: Modelled, text: str) -> PropertyResult:
    return check_all(modelled.model, read_property(text))


def model(following: list[list[dict[int, float]]], earned: list[list[float]], **labels: list[int]) -> Modelled:
    """A world in which action a of state s leads to `following[s][a]`, and earns `earned[s][a]`; it begins in 0."""
    size, count = len(following), len(following[0])
    ways = [way for state in following for way in state]
    made = FiniteModel(
        numbered_states(size, **labels),
        np.arange(0, size * count + 1, count),
        np.cumsum([0, *map(len, ways)]),
        np.array([to for way in ways for to in way]),
        np.array([share for way in ways for share in way.values()]),
        np.tile(np.arange(count), size),
        tuple(map(str, range(count))),
        {"cost": np.array(earned, np.float64).ravel()},
    )
    return Modelled(made, np.arange(size))


def drawn(rng: np.random.Generator, least: int, size: int = 4, count: int = 2) -> Modelled:
    """A model with rewards from `least` halves up to one; its last state is the goal, and the one before bad."""
    following = []
    for _ in range(size * count):
        to = rng.choice(size, rng.integers(1, 3), replace=False).tolist()
        following.append(dict(zip(to, rng.dirichlet(np.ones(len(to))).tolist(), strict=True)))
    pairs = [following[index : index + count] for index in range(0, size * count, count)]
    earned = (rng.integers(least, 3, (size, count)) / 2).tolist()
    return model(pairs, earned, goal=[size - 1], bad=[size - 2])


@pytest.mark.parametrize("least", [-2, 0])
def test_no_policy_is_outside_and_some_are_at_both_ends(least: int) -> None:
    """Of a deadline, and of what is earned, bounds may be wider than policies without memory come to."""
    rng, num_tight = np.random.default_rng(least + 2), 0
    for _ in range(25):
        world = drawn(rng, least)
        for path in PATHS:
            bounds, prop = under_any(world, path), read_property(path)
            found = [check(world.chain(np.array(one)), prop) for one in itertools.product((0, 1), repeat=4)]
            low, high = min(one.low or 0.0 for one in found), max(one.high or 0.0 for one in found)
            assert bounds.low is not None
            assert bounds.high is not None
            assert bounds.low <= low + 1e-7, path
            assert bounds.high >= high - 1e-7, path
            if path in EXACT:
                assert (bounds.low, bounds.high) == pytest.approx((low, high), abs=1e-7), path
            num_tight += path not in EXACT and (bounds.low, bounds.high) == pytest.approx((low, high), abs=1e-7)
    assert num_tight > 20


def test_the_lake_is_crossed_with_14_of_17_at_best(lake: Modelled) -> None:
    """Into a hole all can fall, and from the start nobody has to."""
    best = pytest.approx(14 / 17, abs=1e-6)
    assert (under_any(lake, "P=? [ F s=15 ]").low, under_any(lake, "P=? [ F s=15 ]").high) == (0.0, best)
    assert under_any(lake, "P=? [ G s!=15 ]").low == pytest.approx(3 / 17, abs=1e-6)
    assert under_any(lake, 'P=? [ F ("terminated" & s!=15) ]').high == 1.0
    assert under_any(lake, "P=? [ X s=4 ]").high == pytest.approx(1 / 3, abs=1e-6)
    assert under_any(lake, 'R{"reward"}=? [ C<=1000 ]').high == pytest.approx(14 / 17, abs=1e-4)
    assert under_any(lake, "P<=0.9 [ F s=15 ]").holds
    assert under_any(lake, "P<=0.8 [ F s=15 ]").holds is None


def test_a_middling_policy_breaks_what_the_best_and_the_worst_keep(lake: Modelled) -> None:
    """The best falls too seldom, and the worst never arrives."""
    assert not under_any(lake, 'P<0.5 [ F s=15 ] | P<=0.2 [ F ("terminated" & s!=15) ]').holds
    assert under_any(lake, "P<=0.9 [ F s=15 ] | P<=0.2 [ F s=5 ]").holds, "the first part alone says so"


def test_what_is_dear_and_can_be_put_off_is_not_put_off_for_ever() -> None:
    """A crash costs 100 once, every minute 0.1, also after it."""
    car = model([[{0: 1.0}, {1: 1.0}], [{1: 1.0}, {1: 1.0}]], [[0.1, 100.0], [0.1, 0.1]])
    assert under_any(car, 'R{"cost"}=? [ C<=100 ]').high == pytest.approx(109.9, abs=1e-4)
    assert not under_any(car, 'R{"cost"}<=50 [ C<=100 ]').holds
    assert under_any(car, 'R{"cost"}<=110 [ C<=100 ]').holds


def test_who_loses_on_the_way_can_wait_as_long_as_is_wanted() -> None:
    """-1 a step; on, or wait; nothing earns less than who waits, and arrives."""
    road = model([[{1: 1.0}, {0: 1.0}], [{1: 1.0}, {1: 1.0}]], [[-1.0, -1.0], [0.0, 0.0]], done=[1])
    assert under_any(road, 'R{"cost"}=? [ F "done" ]').low == -np.inf
    assert not under_any(road, 'R{"cost"}>=(-20) [ F "done" ]').holds


def test_who_goes_round_for_ever_earns_infinitely_much() -> None:
    """On a ring of four each second action leads on for nothing, and all others off it."""
    off: dict[int, float] = {4: 1.0}
    ways = [[off, {1: 1.0}], [{2: 1.0}, off], [off, {3: 1.0}], [{0: 1.0}, off], [off, off]]
    ring = model(ways, [[0.0, 0.0]] * 5, done=[4])
    assert not under_any(ring, 'R{"cost"}<=1 [ F "done" ]').holds
    assert under_any(ring, 'R{"cost"}=? [ F "done" ]').high == np.inf


def test_a_way_that_is_sure_only_where_there_is_time_for_it() -> None:
    """The place where one may crash at once, with a half, is reached after eight steps; a sure way takes five more."""
    ways: list[list[dict[int, float]]] = [[{step + 1: 1.0}] * 2 for step in range(8)]
    ways += [[{9: 0.5, 10: 0.5}, {11: 1.0}], [{9: 1.0}] * 2, [{10: 1.0}] * 2]
    ways += [[{step + 1: 1.0}] * 2 for step in range(11, 15)] + [[{9: 1.0}] * 2]
    road = model(ways, [[0.0, 0.0]] * len(ways), crash=[9])
    assert under_any(road, 'P=? [ F<=10 "crash" ]').high == pytest.approx(0.5, abs=1e-6)
    for text in ('P<=0.1 [ F<=10 "crash" ]', 'P>=0.9 [ G<=10 !"crash" ]', 'P<=0.01 [ F P>=0.5 [ X "crash" ] ]'):
        assert not under_any(road, text).holds, text
    assert under_any(road, 'P<=0.01 [ F<=3 "crash" ]').holds


def test_what_nobody_changes_is_kept_at_its_limit_too() -> None:
    """Within rounding; a strict limit is not."""
    coin = model([[{1: 0.3, 2: 0.7}] * 2, [{1: 1.0}] * 2, [{2: 1.0}] * 2], [[1.0, 1.0]] * 3, heads=[1])
    assert under_any(coin, 'P<=0.3 [ F "heads" ]').holds
    assert under_any(coin, 'P>=0.3 [ F "heads" ]').holds
    assert not under_any(coin, 'P<0.3 [ F "heads" ]').holds
    assert under_any(coin, 'P>0 [ F "heads" ]').holds
    assert under_any(coin, 'R{"cost"}<=7 [ C<=7 ]').holds
    assert not under_any(coin, "P<1 [ F s>0 ]").holds
    assert under_any(coin, "P>=1 [ F s>0 ]").holds


def test_a_large_grid_is_crossed_in_no_fewer_steps_than_it_is_wide_and_high() -> None:
    """10,000 states; one move in five does nothing."""
    side = 100

    def way(state: int, down: int, right: int) -> dict[int, float]:
        row, column = (min(max(one, 0), side - 1) for one in (state // side + down, state % side + right))
        to = row * side + column
        return {state: 1.0} if to == state else {to: 0.8, state: 0.2}

    moves = ((0, 1), (1, 0), (0, -1), (-1, 0))
    ways = [[way(state, *move) for move in moves] for state in range(side**2)]
    grid = model(ways, [[1.0] * 4] * side**2, done=[side**2 - 1])
    assert under_any(grid, 'R{"cost"}=? [ F "done" ]').low == pytest.approx((2 * side - 2) / 0.8, abs=1e-3)


def test_who_cannot_be_sure_to_arrive_pays_infinitely_much() -> None:
    """Every way out may end in the trap, and each step costs: who waits pays, and never arrives for sure."""
    ways: list[list[dict[int, float]]] = [[{0: 1.0}, {1: 0.5, 2: 0.5}], [{1: 1.0}] * 2, [{2: 1.0}] * 2]
    pit = model(ways, [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], done=[1])
    found = under_any(pit, 'R{"cost"}=? [ F "done" ]')
    assert (found.low, found.high) == (np.inf, np.inf)


STOP: list[dict[int, float]] = [{1: 1.0}] * 2
SAFE: list[dict[int, float]] = [{2: 1.0}] * 2


def test_what_is_above_a_limit_by_little_is_above_it() -> None:
    """Nothing absolute is added to a limit, which may be as small as what it is about."""
    road = model([[{1: 2e-8, 2: 1.0 - 2e-8}, {2: 1.0}], STOP, SAFE], [[1e-9, 0.0], [0.0] * 2, [0.0] * 2], crash=[1])
    for text in ('P<=1e-8 [ F "crash" ]', 'P>=1 [ G !"crash" ]', 'P>=0.99999999 [ G !"crash" ]'):
        assert not under_any(road, text).holds, text
    assert not under_any(road, 'R{"cost"}<=0 [ C<=3 ]').holds
    assert under_any(road, 'P<=2e-8 [ F "crash" ]').holds
    assert under_any(road, 'P>=0.99999998 [ G !"crash" ]').holds
    dear = model([[{0: 1.0}] * 2], [[1e8 + 0.1, 1.0]])
    assert not under_any(dear, 'R{"cost"}<=1e8 [ C<=1 ]').holds
    assert under_any(dear, 'R{"cost"}<=100000000.1 [ C<=1 ]').holds
    assert under_any(dear, 'R{"cost"}>=1000 [ C<=1000 ]').holds


@pytest.mark.parametrize("leaving", [2.0**-14, 2.0**-40])
def test_a_slow_loop_is_bounded_from_both_sides(leaving: float) -> None:
    """It ends in two places, in each with a half, after 1/leaving steps: too many to be awaited, in the second case.
    What cannot be reached, and is worth far more, changes nothing."""
    way = {0: 1.0 - leaving, 1: leaving / 2, 2: leaving / 2}
    loop = model([[way] * 2, STOP, SAFE, [{3: 0.5, 2: 0.5}] * 2], [[1e-6] * 2, [0.0] * 2, [0.0] * 2, [1e12] * 2], a=[1])
    found, earned = under_any(loop, 'P=? [ F "a" ]'), under_any(loop, 'R{"cost"}=? [ F s=1|s=2 ]')
    for one, true in ((found, 0.5), (earned, 1e-6 / leaving)):
        assert one.low is not None
        assert one.high is not None
        assert one.low <= true <= one.high
        if leaving > 1e-6:
            assert (one.low, one.high) == pytest.approx((true, true), rel=1e-9)


def test_what_is_nearly_sure_is_not_certain() -> None:
    """By all that float64 can tell they are 1."""
    toss = model([[{0: 0.5, 1: 0.5}] * 2, STOP], [[0.0] * 2] * 2, goal=[1])
    step = model([[{1: 0.5, 2: 0.5, 3: 2.0**-70}] * 2, STOP, SAFE, [{3: 1.0}] * 2], [[0.0] * 2] * 4, goal=[1, 2])
    for world, text in ((toss, 'P>=1 [ F<=60 "goal" ]'), (step, 'P>=1 [ X "goal" ]')):
        assert not under_any(world, text).holds, text
        assert not under_any(world, f"P>=1 [ G {text} ]").holds, text
        assert not under_any(world, f"P<=0 [ F !({text}) ]").holds, text
    assert under_any(toss, 'P>=1 [ F "goal" ]').holds
    assert under_any(toss, 'P>=1 [ X P>0 [ F<=60 "goal" ] ]').holds
    assert under_any(model([[{1: 0.3, 2: 0.7}] * 2, STOP, SAFE], [[0.0] * 2] * 3), "P>=1 [ F<=1 s>0 ]").holds


@pytest.mark.parametrize("other", [{6: 1e-100, 7: 1.0}, {7: 1.0}])
def test_what_is_too_rare_for_a_number_is_possible(other: dict[int, float]) -> None:
    """1e-600, for all policies or for some."""
    ways: list[list[dict[int, float]]] = [[{step + 1: 1e-100, 7: 1.0}] * 2 for step in range(6)]
    ways[5][1] = other
    rare = model([*ways, [{6: 1.0}] * 2, [{7: 1.0}] * 2], [[0.0] * 2] * 8, crash=[6])
    for path in ('[ F "crash" ]', '[ F<=6 "crash" ]'):
        assert not under_any(rare, f"P<=0 {path}").holds, path
        assert bool(under_any(rare, f"P>0 {path}").holds) == (6 in other), path
        assert under_any(rare, f"P<=1e-300 {path}").holds, path
    assert under_any(rare, 'P<=0 [ F<=5 "crash" ]').holds
    start = np.array([1e-30, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    either = replace(rare.model, states=replace(rare.model.states, initial=start))
    assert not check_all(either, read_property('P<=0 [ F "crash" ]')).holds, "it begins there seldom, and may"


def test_a_long_countdown_is_looked_at_once() -> None:
    """100,000 states, each known by the one before."""
    size = 100_000
    down = model([[{max(state - 1, 0): 1.0}] for state in range(size)], [[1.0]] * size, top=[size - 1])
    assert under_any(down, "P>=1 [ G P>=1 [ F s=0 ] ]").holds
    assert under_any(down, f"P<=0 [ F<={size - 2} P>0 [ X s=0 ] & s>1 ]").holds


def test_a_horizon_of_ten_million_steps_takes_no_longer_than_its_transitions() -> None:
    """And is added up without any error, where it can be. Of one that would take hours nothing is said."""
    clock = model([[{1: 1.0}, {0: 1.0}], [{0: 1.0}] * 2], [[1.0, 1.0], [1.0, 1.0]])
    found = under_any(clock, 'R{"cost"}=? [ C<=10000000 ]')
    assert (found.low, found.high) == (1e7, 1e7)
    found = under_any(clock, 'R{"cost"}=? [ C<=1000000000000 ]')
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert under_any(clock, "P>=0 [ F<=1000000000000 s=1 ]").holds


def test_who_waits_for_free_does_not_arrive() -> None:
    """In place, or on a ring; on costs 5, or 7."""
    ring: list[list[dict[int, float]]] = [[{0: 1.0}, {1: 1.0}], [{2: 0.5, 0: 0.5}, {3: 1.0}], [{1: 1.0}, {3: 1.0}]]
    free = model([*ring, [{3: 1.0}] * 2], [[0.0, 0.0], [0.0, 5.0], [0.0, 7.0], [0.0, 0.0]], done=[3])
    found = under_any(free, 'R{"cost"}=? [ F "done" ]')
    assert (found.low, found.high) == (5.0, np.inf)
    assert under_any(free, 'R{"cost"}>=5 [ F "done" ]').holds
    assert not under_any(free, 'R{"cost"}>=5.1 [ F "done" ]').holds


def looping(rng: np.random.Generator) -> Modelled:
    """A model of six states in which many may stay for ever among some for nothing; its last state is the goal."""
    following, earned = [], []
    for state in range(6):
        onward = rng.choice(6, 3, replace=False).tolist()
        near = [min(state ^ 1, 4), state] if rng.random() < 0.6 else [int(rng.integers(6)), state]
        rare = float(rng.choice([0.5, 0.25, 2.0**-9]))
        following.append([dict.fromkeys(near, 0.5), dict(zip(onward, (rare, 0.5, 0.5 - rare), strict=True))])
        following[-1] = [{to: share for to, share in way.items() if share > 0.0} for way in following[-1]]
        earned.append([0.0, float(rng.choice([0.0, 0.1, 3.0, 1e8]))])
    following = [[way if sum(way.values()) == 1.0 else {next(iter(way)): 1.0} for way in ways] for ways in following]
    return model(following, earned, goal=[5], bad=[4])


def test_bounds_hold_to_the_last_bit_where_many_can_stay_for_ever() -> None:
    """Against what each policy surely comes to."""
    rng, num_tight = np.random.default_rng(3), 0
    for _ in range(25):
        world = looping(rng)
        for path in [*EXACT, 'R{"cost"}=? [ F "goal" ]']:
            bounds, prop = under_any(world, path), read_property(path)
            assert bounds.low is not None
            assert bounds.high is not None
            found = [check(world.chain(np.array(one)), prop) for one in itertools.product((0, 1), repeat=6)]
            ends = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
            low, high = min(most for _, most in ends), max(least for least, _ in ends)
            assert bounds.low <= low, path
            assert high <= bounds.high, path
            num_tight += (bounds.low, bounds.high) == pytest.approx((low, high), rel=1e-9, abs=1e-15)
    assert num_tight == 150

"""Actions that are there to break a property, in a model whose best and worst ones are seen at a glance."""

import gymnasium
import numpy as np
import pytest

from loomrl.environment.finite.model import FiniteModel, States
from loomrl.environment.finite.of_environment import Modelled, model_of
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.safety.model_checking.pctl import check
from loomrl.safety.model_checking.spoilers import spoilers


@pytest.fixture(scope="module")
def lake() -> Modelled:
    """The 4x4 lake that slips: a move goes where it should, or to either side of that, with a third each."""
    return model_of(gymnasium.make("FrozenLake-v1"))


def reached(lake: Modelled, asked: str) -> list[float]:
    """The probability under each of the policies that `asked` gets."""
    prop = read_property(f"P=? [ {asked} ]")
    results = [check(lake.chain(actions), prop) for actions in spoilers(lake.model, prop)]
    assert all(one.low is not None and one.high is not None and one.high - one.low < 1e-9 for one in results)
    return [round(one.high or 0.0, 6) for one in results]


def test_the_likeliest_and_the_least_likely_way(lake: Modelled) -> None:
    """The goal is reached with 14/17 at best; into a hole, all can fall, and from the start nobody has to."""
    assert reached(lake, "F s=15") == [round(14 / 17, 6), 0.0]
    assert reached(lake, 'F ("terminated" & s!=15)')[0] == 1.0
    assert reached(lake, "F<=1 s=4") == reached(lake, "F<2 s=4") == reached(lake, "X s=4") == [round(1 / 3, 6), 0.0]
    assert reached(lake, "s!=4 & s!=1 U s=8") == [0.0, 0.0], "every way from the start begins with one of them"


def test_always_and_until_for_ever_are_a_reach_of_what_must_not_be(lake: Modelled) -> None:
    """Those of G and W are in the other order: what makes the reach likeliest makes them least likely."""
    assert reached(lake, "G s!=15") == [round(3 / 17, 6), 1.0]
    assert reached(lake, "s!=15 W false") == [round(3 / 17, 6), 1.0]


def a_choice(following: list[list[int]], earned: list[list[float]], **labels: list[int]) -> Modelled:
    """A world in which action a of state s leads to `following[s][a]`, surely, and earns `earned[s][a]`."""
    size, count = len(following), 2 * len(following)
    initial = np.zeros(size)
    initial[0] = 1.0
    masks = {name: np.isin(np.arange(size), where) for name, where in labels.items()}
    states = States(("s",), np.arange(size)[:, None], frozenset(), initial, masks)
    starts, rewards = np.arange(0, count + 1, 2), {"cost": np.array(earned).ravel()}
    columns, actions = np.array(following).ravel(), np.tile(np.arange(2), size)
    rows = np.arange(count + 1)
    model = FiniteModel(states, starts, rows, columns, np.ones(count), actions, ("left", "right"), rewards)
    return Modelled(model, np.arange(size))


def is_broken_by_any(modelled: Modelled, text: str) -> bool:
    formula = read_property(text)
    return any(check(modelled.chain(one), formula).holds is False for one in spoilers(modelled.model, formula))


def test_who_earns_the_least_arrives() -> None:
    """To go in circles for nothing is no way to the goal: what is earned until then is infinite. Of two ways on, the
    first is the dear one."""
    following, earned = [[10, 10] for _ in range(11)], [[0.0, 0.0] for _ in range(11)]
    for state in range(10):
        following[state] = [state + 1, state + 1 if state % 2 else 0]
        earned[state] = [1.0, 0.1] if state % 2 else [0.1, 0.0]
    lane = a_choice(following, earned, done=[10])
    assert is_broken_by_any(lane, 'R{"cost"}>=1.5 [ F "done" ]')
    assert not is_broken_by_any(lane, 'R{"cost"}>=0.9 [ F "done" ]')


@pytest.mark.parametrize("first", ['X "a"', 'F<=1 "a"'])
def test_what_comes_second_is_worked_against_when_the_steps_of_the_first_are_over(first: str) -> None:
    """One way begins with a; each step of both can lead to b, unless one knows which way to go."""
    rng = np.random.default_rng(0)
    ways = rng.integers(0, 2, 17)
    ways[[1, 9]] = 1
    bad, safe = 17, 18
    following = [[1, 9], *([bad, bad] for _ in range(16)), [bad, bad], [safe, safe]]
    for state in range(1, 17):
        following[state][ways[state]] = safe if state in (8, 16) else state + 1
    fork = a_choice(following, [[0.0, 0.0]] * 19, a=[1], b=[bad])
    assert is_broken_by_any(fork, f'P>=0.9 [ {first} ] | P>=0.9 [ F "b" ]')


def test_the_next_state_matters_wherever_one_is() -> None:
    """Also where one begins in what is asked for; and who begins where the first way is lost goes the second."""
    stay = a_choice([[1, 0], [1, 1]], [[0.0, 0.0]] * 2, a=[0])
    assert is_broken_by_any(stay, 'P<=0.5 [ X "a" ]')
    assert is_broken_by_any(stay, 'P>=0.5 [ X "a" ]')
    lost = a_choice([[1, 2], [1, 1], [2, 2]], [[0.0, 0.0]] * 3, a=[1], b=[2])
    assert is_broken_by_any(lost, 'P>=0.5 [ s>0 U "b" ] | P<=0.5 [ F "b" ]')


def test_each_p_of_a_formula_is_worked_against_but_one_about_another(lake: Modelled) -> None:
    both = read_property("P<=0.1 [ F s=5 ] & P>=0.5 [ F P>=0.9 [ X s=4 ] ]")
    found = list(spoilers(lake.model, both))
    assert len(found) == 4 + 2 * 4, "of the first, and of the one inside the second, and of both in turn"


def test_what_is_earned_at_most_and_at_least(lake: Modelled) -> None:
    """As likely as the goal is reached, for it earns 1 and nothing else does."""
    prop = read_property('R{"reward"}=? [ C<=1000 ]')
    results = [check(lake.chain(actions), prop) for actions in spoilers(lake.model, prop)]
    assert [one.high for one in results] == pytest.approx([14 / 17, 0.0], abs=1e-4)


def test_actions_at_random_are_each_as_likely(lake: Modelled) -> None:
    """From the start: up and left mostly stay, right and down mostly leave."""
    result = check(lake.at_random(), read_property("P=? [ X s=0 ]"))
    assert result.low == pytest.approx((2 + 2 + 1 + 1) / 12)
    chain = lake.at_random()
    pairs = np.repeat(np.arange(len(chain.states)), np.diff(chain.row_start)) * len(chain.states) + chain.columns
    assert len(np.unique(pairs)) == len(pairs), "what several actions lead to is one entry"

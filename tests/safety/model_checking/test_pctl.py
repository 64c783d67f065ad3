"""PCTL on chains: bounds hold the number that exact arithmetic gives, whatever the chain."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.environment.finite import linear
from loomrl.environment.finite.model import Chain, States
from loomrl.environment.finite.prism.explore import build_model
from loomrl.environment.finite.prism.syntax import read_program, read_property
from loomrl.errors import ConfigError
from loomrl.safety.model_checking.pctl import PropertyResult, check
from tests.support.finite_models import numbered_states
from tests.support.prism_models import DIE, GAMBLER

Rows = list[list[Fraction]]


def chain_of(rows: Rows, goal: set[int], rewards: list[int] | None = None) -> Chain:
    """A chain with the label "goal", whose doubles stand for the rows to the last bit."""
    size = len(rows)
    entries = [(row, column, share) for row, shares in enumerate(rows) for column, share in enumerate(shares) if share]
    counts = np.bincount([row for row, _, _ in entries], minlength=size)
    return Chain(
        numbered_states(size, goal=goal, odd=range(1, size, 2)),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([column for _, column, _ in entries], np.int64),
        np.array([float(share) for _, _, share in entries]),
        {"cost": np.array(rewards or [1] * size, np.float64)},
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[Rows, set[int], list[int]]:
    """Rows of sixteenths, which doubles hold exactly."""
    size = draw(st.integers(2, 7))
    rows = []
    for _ in range(size):
        weights = draw(st.lists(st.integers(0, size - 1), min_size=16, max_size=16))
        rows.append([Fraction(weights.count(column), 16) for column in range(size)])
    goal = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=2))
    return rows, goal, draw(st.lists(st.integers(-3, 5), min_size=size, max_size=size))


def solved(matrix: Rows, right: list[Fraction]) -> list[Fraction]:
    """Gaussian elimination in exact arithmetic."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for row in range(size):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [one - factor * other for one, other in zip(rows[row], rows[column], strict=True)]
    return [row[-1] for row in rows]


def reached(rows: Rows, goal: set[int]) -> list[Fraction]:
    """P(F goal) in every state: states that cannot reach it are 0, the others' equations have one solution."""
    can = set(goal)
    while True:
        more = {row for row in range(len(rows)) if any(rows[row][column] for column in can)} - can
        if not more:
            break
        can |= more
    inside = sorted(can - goal)
    matrix = [[Fraction(int(row == column)) - rows[row][column] for column in inside] for row in inside]
    values = solved(matrix, [sum((rows[row][column] for column in goal), Fraction(0)) for row in inside])
    found = dict(zip(inside, values, strict=True))
    return [Fraction(1) if state in goal else found.get(state, Fraction(0)) for state in range(len(rows))]


def within(answer: PropertyResult, exact: Fraction) -> bool:
    assert answer.low is not None
    assert answer.high is not None
    return Fraction(answer.low) <= exact <= Fraction(answer.high) and answer.high - answer.low < 1e-9


@settings(max_examples=120, deadline=None)
@given(chains())
def test_reachability_holds_the_exact_probability(made: tuple[Rows, set[int], list[int]]) -> None:
    rows, goal, _ = made
    exact = reached(rows, goal)[0]
    assert within(check(chain_of(rows, goal), read_property('P=? [ F "goal" ]')), exact)
    assert within(check(chain_of(rows, goal), read_property('P=? [ G !"goal" ]')), 1 - exact)


@settings(max_examples=80, deadline=None)
@given(chains(), st.integers(0, 12))
def test_bounded_properties_hold_the_exact_numbers(made: tuple[Rows, set[int], list[int]], steps: int) -> None:
    rows, goal, rewards = made
    chain = chain_of(rows, goal, rewards)
    value = [Fraction(int(state in goal)) for state in range(len(rows))]
    kept = value
    earned = [Fraction(0)] * len(rows)
    for _ in range(steps):
        moved = [sum((share * after for share, after in zip(row, value, strict=True)), Fraction(0)) for row in rows]
        value = [Fraction(1) if state in goal else moved[state] for state in range(len(rows))]
        past = [sum((share * after for share, after in zip(row, kept, strict=True)), Fraction(0)) for row in rows]
        kept = [
            Fraction(1) if state in goal else past[state] if state % 2 == 0 else Fraction(0)
            for state in range(len(rows))
        ]
        later = [sum((share * after for share, after in zip(row, earned, strict=True)), Fraction(0)) for row in rows]
        earned = [Fraction(gain) + after for gain, after in zip(rewards, later, strict=True)]
    assert within(check(chain, read_property(f'P=? [ F<={steps} "goal" ]')), value[0])
    assert within(check(chain, read_property(f'P=? [ !"odd" U<={steps} "goal" ]')), kept[0])
    assert within(check(chain, read_property(f'R{{"cost"}}=? [ C<={steps} ]')), earned[0])


@settings(max_examples=80, deadline=None)
@given(chains())
def test_expected_rewards_hold_the_exact_number_or_are_infinite(made: tuple[Rows, set[int], list[int]]) -> None:
    rows, goal, rewards = made
    answer = check(chain_of(rows, goal, rewards), read_property('R=? [ F "goal" ]'))
    surely = [state for state, value in enumerate(reached(rows, goal)) if value == 1 and state not in goal]
    if reached(rows, goal)[0] < 1:
        assert (answer.low, answer.high) == (np.inf, np.inf)
        return
    matrix = [[Fraction(int(row == column)) - rows[row][column] for column in surely] for row in surely]
    values = dict(zip(surely, solved(matrix, [Fraction(rewards[row]) for row in surely]), strict=True))
    assert within(answer, values.get(0, Fraction(0)))


@pytest.mark.parametrize("method", ["_gauss_seidel", "_krylov", "_Direct"])
@settings(max_examples=40, deadline=None)
@given(made=chains())
def test_every_way_to_solve_is_certified(method: str, made: tuple[Rows, set[int], list[int]]) -> None:
    rows, goal, _ = made
    exact = reached(rows, goal)
    inside = [state for state, value in enumerate(exact) if 0 < value < 1]
    if not inside:
        return
    entries = [(row, column, rows[row][column]) for row in inside for column in inside if rows[row][column]]
    counts = [sum(row == one for row, _, _ in entries) for one in inside]
    matrix = linear.SparseRows(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([inside.index(column) for _, column, _ in entries], np.int64),
        np.array([float(share) for _, _, share in entries]),
        len(rows),
    )
    gain = np.array(
        [float(sum(rows[row][column] * (exact[column] == 1) for column in range(len(rows)))) for row in inside]
    )
    ways = {"_gauss_seidel": linear._gauss_seidel, "_krylov": linear._krylov, "_Direct": linear._Direct(matrix).solve}
    found = linear._certified(matrix, gain, ways[method])
    if found is None:
        assert method == "_gauss_seidel"  # it may not converge in time; then another way is taken
        return
    for state, value, error in zip(inside, found.value, found.error, strict=True):
        assert abs(Fraction(float(value)) - exact[state]) <= Fraction(float(error))
        assert error < 1e-9


def test_a_wrong_solution_is_never_certified() -> None:
    matrix = linear.SparseRows(np.array([0, 1]), np.array([0]), np.array([0.5]), 1)
    gain = np.array([0.25])  # x = 1/2

    def wrong(given: linear.SparseRows, right: np.ndarray) -> np.ndarray:
        return np.array([2.0]) if right[0] == 1.0 else np.array([0.4])

    found = linear._certified(matrix, gain, wrong)
    assert found is not None
    assert abs(found.value[0] - 0.5) <= found.error[0]
    assert linear._certified(matrix, gain, lambda given, right: np.array([1.0])) is None  # h proves nothing


def test_a_chain_that_mixes_slowly_is_solved() -> None:
    chain = build_model(read_program(GAMBLER), {"N": 8_000, "p": 0.5}).only_chain()
    answer = check(chain, read_property("P=? [ F x=8000 ]"))
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low <= 0.5 <= answer.high
    assert answer.high - answer.low < 1e-6


die = pytest.fixture(lambda: build_model(read_program(DIE)).only_chain())


@pytest.mark.parametrize(
    ("prop", "holds"),
    [
        ("P<0.2 [ F d=1 ]", True),
        ("P>=0.2 [ F d=1 ]", False),
        ("P<=(1/6) [ F d=1 ]", None),  # equal in truth, which no double can say
        ('P>=1 [ F "done" ]', True),
        ("P<=0 [ F d=1 & s=6 ]", True),
        ("P>0.1 [ F d=1 ] & P>0.1 [ F d=2 ]", True),
        ("!(P>0.1 [ F d=1 ]) | s=0", True),
        ("P>0.1 [ F d=1 ] => P>0.5 [ F d=1 ]", False),
        ("P>0.1 [ F d=1 ] <=> P>0.1 [ F d=2 ]", True),
        ("P>=0.4 [ X P>=0.3 [ F d=1 ] ]", True),  # from s=1, d=1 is reached with 1/3
        ("P>=0.6 [ X P>=0.3 [ F d=1 ] ]", False),
        ("P>=0.5 [ X P>=(1/3) [ F d=1 ] ]", None),
        ("P>=1 [ s<7 W s=7 ]", True),
        ("P>=0.4 [ s!=2 W s=7 ]", True),
        ("P>=0.6 [ s!=2 W s=7 ]", False),
        ('R{"flips"}<=3.7 [ F "done" ]', True),
        ('R{"flips"}<3.6 [ F "done" ]', False),
        ("P<0.8 [ F<3+1 s=7 ]", None),
    ],
)
def test_properties_of_a_die(die: Chain, prop: str, holds: bool | None) -> None:
    if "3+1" in prop:
        with pytest.raises(ConfigError):
            read_property(prop)
        return
    assert check(die, read_property(prop)).holds is holds


ROUNDED = """
dtmc
module m
  s : [0..2];
  [] s=0 -> 1e-17 : (s'=1) + 1-1e-17 : (s'=2);
endmodule
"""
LINE = "dtmc module m s : [0..9]; [] s<9 -> (s'=s+1); endmodule"


@pytest.mark.parametrize(
    ("text", "prop", "holds"),
    [
        (ROUNDED, "P>=1 [ G s!=1 ]", None),  # in truth just below 1, which no double says
        (ROUNDED, "P>=1 [ s!=1 W s=1 ]", True),
        (ROUNDED, "P>=1 [ X s=2 ]", None),
        (ROUNDED, "P<=0 [ X s=1 ]", None),
        (ROUNDED, "P>=1 [ X s>0 ]", True),
        (LINE, "P>=1 [ F<=1 s=1 ]", True),
        (LINE, "P<=0 [ F<=2 s=5 ]", True),
        (LINE, "P>=1 [ G<=2 s<5 ]", True),
        (LINE, "P>=1 [ G<=9 s<5 ]", False),
        (LINE, "P>=1 [ s<3 U<=9 s=3 ]", True),
    ],
)
def test_only_what_is_exactly_0_or_1_is_called_so(text: str, prop: str, holds: bool | None) -> None:
    assert check(build_model(read_program(text)).only_chain(), read_property(prop)).holds is holds


@pytest.mark.parametrize("size", [6, 300])
def test_an_average_of_ones_is_one(size: int) -> None:
    rows = [[Fraction(int(column == size)) for column in range(size + 1)] for _ in range(size + 1)]
    chain = chain_of(rows, {size})
    initial = np.append(np.full(size, 1.0 / size), 0.0)
    spread = Chain(
        replace(chain.states, initial=initial), chain.row_start, chain.columns, chain.probabilities, chain.rewards
    )
    assert check(spread, read_property('P>=1 [ F "goal" ]')).holds
    found = check(spread, read_property("P=? [ X s>3 ]"))
    assert (found.low, found.high) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("prop", "message"),
    [
        ('P=? [ F "home" ]', r'there is no label "home"; labels: "deadlock", "done", "init"'),
        ("P=? [ F z=1 ]", "'z' is not known; names: d, s"),
        ('R{"gold"}=? [ F s=7 ]', 'there are no rewards "gold"; rewards: "flips"'),
        ("P<=1.5 [ F s=7 ]", "a probability's limit lies between 0 and 1, found 1.5"),
        ("P<=0.5 [ F P=? [ F s=7 ] ]", "=\\? asks for a number, and stands alone"),
        ("P=? [ F<=2.5 s=7 ]", "steps are bounded by <= or < and an integer"),
        ("P=? [ F>=2 s=7 ]", "steps are bounded by <= or < and an integer"),
        ("P=? [ F<0 s=7 ]", "<0 allows no step"),
        ("P=? [ F s ]", "a number stands where a condition is needed"),
        ("P>0.1 [ F s=7 ] = true", "P and R stand among conditions joined by"),
        ("s", "a number stands where a condition is needed"),
        ("R<=5 [ F P>=(1/6) [ F d=1 ] ]", "what is reached depends on a P or R that lies at its limit"),
    ],
)
def test_what_has_no_meaning_is_refused(die: Chain, prop: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(die, read_property(prop))


def test_what_is_not_known_of_one_initial_state_is_not_known_of_their_expectation() -> None:
    """From one of two initial states the goal is 10^1200 steps away: no solver bounds what is earned until then."""
    count = 400
    row_start, columns, shares = [0], [], []
    for state in range(count):
        columns += [max(state - 1, 0), state + 1]
        shares += [0.999, 0.001]
        row_start.append(len(columns))
    initial = np.zeros(count + 1)
    initial[[0, count]] = 0.5
    states = States(
        ("s",), np.arange(count + 1)[:, None], frozenset(), initial, {"goal": np.arange(count + 1) == count}
    )
    chain = Chain(
        states,
        np.array([*row_start, len(columns) + 1]),
        np.array([*columns, count]),
        np.array([*shares, 1.0]),
        {"r": np.zeros(count + 1)},
    )
    assert check(chain, read_property('R{"r"}>=5 [ F "goal" ]')).holds is not True
